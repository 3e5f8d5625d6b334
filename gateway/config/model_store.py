"""The `[models]` section: which models are served where no pools are named, and where their files are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.pools import TIERS, Tier
from gateway.models.catalogue import CatalogueModel, catalogue
from gateway.models.store import ModelStore, default_folder
from gateway.records.section import Section, SettingsError


class ModelStoreSettings(Section, frozen=True):
    """Which models `roundhouse serve` fetches, and where their files are, see [models.md](models.md)."""

    serve: Annotated[
        list[Tier],
        Meta(
            description="Tiers for which `serve` fetches and serves the catalogue's models, where the configuration "
            "names no pools; empty: none, and the small model of this repository serves."
        ),
    ] = msgspec.field(default_factory=lambda: list(TIERS))
    store: Annotated[
        str | None,
        Meta(
            description="Folder for models that are pulled; empty: `roundhouse/models` in `XDG_DATA_HOME`, which is "
            "`~/.local/share` unless set."
        ),
    ] = None
    catalogue: Annotated[
        str | None,
        Meta(description="Catalogue file of your own; empty: the one that this version comes with."),
    ] = None

    def open(self) -> ModelStore:
        """Return the store."""
        return ModelStore(Path(self.store) if self.store else default_folder())

    def offered(self) -> Sequence[CatalogueModel]:
        """Return the models of the catalogue.

        Raises:
            SettingsError: the file is no catalogue.
        """
        try:
            return catalogue(Path(self.catalogue) if self.catalogue else None)
        except (OSError, ValueError) as error:
            raise SettingsError(f"models.catalogue: {self.catalogue}: {error}") from error
