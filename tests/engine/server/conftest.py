"""A served core whose steps a test can hold up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.server import host as server_module
from engine.server.host import EngineServer
from tests.engine.peers import GatedRunner, make_core


@pytest.fixture
def runner() -> GatedRunner:
    return GatedRunner(64)


@pytest.fixture
def server(runner: GatedRunner, monkeypatch: pytest.MonkeyPatch) -> EngineServer:
    monkeypatch.setattr(server_module, "HEARTBEAT_SECONDS", 0.02)
    return EngineServer(make_core(runner))


@pytest.fixture
async def address(server: EngineServer) -> AsyncIterator[str]:
    async with server.listening("ws://127.0.0.1:0") as address:
        yield address
