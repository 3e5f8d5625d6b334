"""Fixtures shared by the engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.checkpoints import write_checkpoint

# Tiny models gain nothing from more threads, and pytest-xdist runs several processes.
torch.set_num_threads(1)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

Checkpoint = Callable[..., Path]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """`checkpoint("llama", **config_overrides)` is a directory with that tiny checkpoint, written once per session."""
    written: dict[str, Path] = {}

    def get(architecture: str = "llama", **overrides: Any) -> Path:
        key = repr((architecture, sorted(overrides.items(), key=lambda item: item[0])))
        if key not in written:
            written[key] = write_checkpoint(tmp_path_factory.mktemp(architecture), architecture, **overrides)
        return written[key]

    return get


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Every device of this machine."""
    name: str = request.param
    return name
