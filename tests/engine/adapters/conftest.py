"""An adapter or two for tests that do not care which, and adapters of every kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.adapters.collection import Collection
from tests.engine.adapters.zoo import write_adapter
from tests.engine.conftest import Checkpoint

Collections = Callable[[str], Collection]


@pytest.fixture(scope="session")
def base(checkpoint: Checkpoint) -> Path:
    return checkpoint("llama")


@pytest.fixture(scope="session")
def written(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two adapters of the same kind with different weights; not to be changed."""
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(folder / str(seed), base, "only q_proj", seed=seed) for seed in (1, 2)]


@pytest.fixture
def adapter(written: list[Path], tmp_path: Path) -> Path:
    """One of them, to be changed."""
    return Path(shutil.copytree(written[0], tmp_path / "adapter"))


@pytest.fixture(scope="session")
def collections(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Collections:
    """`collections("llama")` is the checkpoint of that architecture with all its adapters; not to be changed."""
    written: dict[str, Collection] = {}

    def get(architecture: str) -> Collection:
        if architecture not in written:
            folder = tmp_path_factory.mktemp("collection")
            written[architecture] = Collection.of_everything(checkpoint(architecture), architecture, folder)
        return written[architecture]

    return get
