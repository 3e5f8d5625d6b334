"""The gateway as `serve` runs it in its own process."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.config.configuration import Configuration
from gateway.config.settings import PoolSettings, RouterSettings, Settings
from gateway.engines.arrival import ArrivalState
from gateway.engines.pool import Pool
from gateway.engines.pools import Engines
from gateway.processes.front import OneProcess
from router.route import ComingTier
from tests.gateway.conftest import EngineThread

pytestmark = pytest.mark.anyio


async def test_a_pool_whose_model_has_come_takes_what_was_configured_meanwhile(
    model: Path, engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading its tokenizer takes a while, in which the configuration may be read again."""
    settings = Settings(pools=[PoolSettings(tier="small", name="tiny", model=str(model), engines=[engine.address])])
    [pool] = settings.pools
    engines = Engines([pool], RouterSettings(), coming={pool.name: ComingTier(tier="small", model=pool.name)})
    make, begun, going_on = engines._pool, threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> Pool:
        made = make(*arguments)
        begun.set()
        going_on.wait(30)
        return made

    monkeypatch.setattr(engines, "_pool", slowly)
    with socket.create_server(("127.0.0.1", 0)) as shared:
        front = OneProcess(Configuration(settings), ArrivalState(), shared)
        gateway = front._app.state.gateway = SimpleNamespace(engines=engines, settings=settings)
        async with asyncio.timeout(30):
            adding = asyncio.create_task(front.add(pool))
            await asyncio.to_thread(begun.wait)
            gateway.settings = msgspec.structs.replace(settings, pools=[msgspec.structs.replace(pool, weight=3)])
            engines.configure(gateway.settings.pools, gateway.settings.router)
            going_on.set()
            await (await adding)
            assert engines.pool(pool.name).weight == 3
            await engines.aclose()
