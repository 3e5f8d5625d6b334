"""The client does not wait for its next attempt when somebody knows that an engine is there."""

from __future__ import annotations

import asyncio
import logging

import pytest

from engine.client import engine_client as client_module
from engine.client.engine_client import EngineClient
from tests.engine.peers import TIMEOUT
from tests.engine.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.anyio


async def test_it_connects_at_once_when_it_is_told_that_an_engine_is_there(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "_FIRST_BACKOFF", 3600.0)
    caplog.set_level(logging.DEBUG, client_module.__name__)
    await engine.stop()
    async with asyncio.timeout(TIMEOUT), EngineClient(engine.address) as client:
        while "cannot be used" not in caplog.text:  # noqa: ASYNC110  its first attempt has no other end
            await asyncio.sleep(0.01)
        await engine.start()
        await asyncio.sleep(0.1)
        assert not client.connected
        client.retry()
        await client.wait_connected()
