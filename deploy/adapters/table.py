"""The adapters by name: what each learns, on which base, and where its weights are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from deploy.adapters.task import AdapterTask
from deploy.adapters.tasks import extract, handbook, pirate, socrates
from gateway.config.settings import load
from gateway.models.store import ModelStoreError

HERE = Path(__file__).parent
_TASKS = {"extract": extract.TASK, "handbook": handbook.TASK, "pirate": pirate.TASK, "socrates": socrates.TASK}


_BASE = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class TrainedAdapter:
    """An adapter with its lesson."""

    base: str
    """Name of the base model in the catalogue."""
    task: AdapterTask
    folder: Path
    """The trained adapter, in peft's format."""


def adapters() -> dict[str, TrainedAdapter]:
    """Return all adapters that can be trained."""
    return {name: TrainedAdapter(_BASE, task, HERE / "trained" / name) for name, task in _TASKS.items()}


def shipped() -> dict[str, TrainedAdapter]:
    """Return those that come with Roundhouse, as `adapters.toml` names them."""
    return {name: adapters()[name] for name in msgspec.toml.decode((HERE / "adapters.toml").read_bytes())}


def base_file(name: str) -> Path:
    """Return the file of a base model in the store.

    Raises:
        ModelStoreError: it is not there.
    """
    store = load().models.open()
    model = store.model(name)
    if model is None:
        raise ModelStoreError(f"{name} is not in {store.folder}; fetch it: roundhouse models pull {name}")
    return store.path(model)
