"""Which engines serve a pool's checkpoint, by what they announce of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.files import served_revision
from engine.checkpoint.opening import open_checkpoint
from engine.registration import Lease
from gateway.config.pools import Quantization


@dataclass(frozen=True)
class PoolModel:
    """The checkpoint of a pool."""

    name: str
    """Public name of the model."""
    path: Path
    yarn_factor: float | None = None

    @cached_property
    def revision(self) -> str | None:
        """Revision of the checkpoint; None if the weights are not on this machine."""
        try:
            return open_checkpoint(self.path).revision
        except (CheckpointError, OSError):
            return None

    @cached_property
    def _served(self) -> frozenset[str]:
        """Revisions under which engines may serve it, whatever they round its weights to."""
        if self.revision is None:
            return frozenset()
        formats = [None if each == "off" else each for each in get_args(Quantization)]
        factors = (None, self.yarn_factor)
        return frozenset(served_revision(self.revision, each, yarn) for each in formats for yarn in factors)

    def mismatch(self, lease: Lease) -> str | None:
        """Return how the model of an engine differs from this one; None if it serves it.

        Where the weights are not on this machine, the model's name has to be the engine's.
        """
        names = {self.name, self.path.resolve().name.removesuffix(".gguf")}
        if lease.revision in self._served if self.revision else lease.model in names:
            return None
        mine = (self.revision or "not here")[:12]
        return f"it serves {lease.model} (revision {lease.revision[:12]}), the pool {self.name} ({mine})"
