"""Fixtures shared by the engine's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.client.engine_client import EngineClient
from engine.server import host as server_module
from engine.text.processor import TextProcessor
from tests.engine.checkpoints import write_checkpoint
from tests.engine.peers import TIMEOUT
from tests.engine.scripted_engine import ScriptedEngine
from tests.engine.tokenizer_zoo import byte_level, write_tokenizer

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


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextProcessor:
    return TextProcessor.from_path(write_tokenizer(tmp_path_factory.mktemp("tokenizer"), byte_level()))


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedEngine]:
    monkeypatch.setattr(server_module, "HEARTBEAT_SECONDS", 0.02)
    engine = ScriptedEngine(tmp_path / "engine.sock")
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def client(engine: ScriptedEngine) -> AsyncIterator[EngineClient]:
    async with asyncio.timeout(TIMEOUT), EngineClient(engine.address) as client:
        await client.wait_connected()
        yield client
