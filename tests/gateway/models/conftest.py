"""What the tests of models share: a store, a server, small chunks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.models import chunks
from gateway.models.store import ModelStore
from tests.gateway.models.servers import FileServer, file_server

CHUNK = 1 << 12


class Recorder:
    """Remembers what a pull says."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.done = 0
        self.count = 0

    def begin(self, label: str, size: int | None, done: int) -> None:
        self.done = done

    def advance(self, count: int) -> None:
        self.count += count

    def fetching(self, package: str, count: int) -> None:
        pass

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests are remembered in a folder of the test; chunks are small; nobody's pip and hub settings count."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(chunks, "CHUNK", CHUNK)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as server:
        yield server


@pytest.fixture
def data() -> bytes:
    """A file of several chunks, the last one of which is not whole."""
    return random.Random(7).randbytes(5 * CHUNK + 123)
