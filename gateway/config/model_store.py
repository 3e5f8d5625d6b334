"""The `[models]` section: where files of models are kept on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from gateway.models.store import ModelStore, default_folder
from gateway.records.section import Section


class ModelStoreSettings(Section, frozen=True):
    """Where `roundhouse models` keeps files, see [models.md](models.md)."""

    store: Annotated[
        str | None,
        Meta(
            description="Folder for models that are pulled; empty: `roundhouse/models` in `XDG_DATA_HOME`, which is "
            "`~/.local/share` unless set."
        ),
    ] = None

    def open(self) -> ModelStore:
        """Return the store."""
        return ModelStore(Path(self.store) if self.store else default_folder())
