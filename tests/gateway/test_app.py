"""How a gateway's parts begin and end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import AsyncMock

import msgspec
import pytest
from redis.asyncio import Redis

from engine.adapters.registry import RegistryError
from gateway.app import running
from gateway.config.configuration import Configuration
from gateway.config.settings import Adapters, Pool, Settings, demo_settings
from gateway.config.settings import Redis as RedisSettings
from gateway.registration.registrar import Registrar
from tests.conftest import redis_server

pytestmark = pytest.mark.anyio


@pytest.fixture
async def empty(redis_url: str) -> str:
    """The address of a Redis in which no gateway has left a secret."""
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
    return redis_url


def settings(redis_url: str, model: Path, data: Path, registry: str = "") -> Settings:
    """Of a gateway whose engine is not there."""
    return msgspec.structs.replace(
        demo_settings(),
        redis=RedisSettings(url=redis_url, data=str(data)),
        pools=[Pool(tier="small", name="tiny", model=str(model), engines=[f"unix://{data}/none.sock"])],
        adapters=Adapters(registry=registry),
    )


@pytest.mark.parametrize("failing", ["adapters", "registrar"])
async def test_a_part_that_fails_to_start_leaves_nothing_running(
    failing: str, empty: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if failing == "registrar":
        monkeypatch.setattr(Registrar, "start", AsyncMock(side_effect=FileNotFoundError))
    configured = settings(empty, model, tmp_path, "nosuch://bucket" if failing == "adapters" else "")
    before = asyncio.all_tasks()
    with pytest.raises(RegistryError if failing == "adapters" else FileNotFoundError):
        async with running(Configuration(configured)):
            pass
    assert asyncio.all_tasks() == before
    assert list((tmp_path / "usage").iterdir()) == []  # the ledger has left its journal


async def test_ending_leaves_nothing_running(empty: str, model: Path, tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with running(Configuration(settings(empty, model, tmp_path))):
        assert asyncio.all_tasks() > before
    assert asyncio.all_tasks() == before


async def test_ending_ends_while_redis_hangs(model: Path, tmp_path: Path) -> None:
    with redis_server() as url:
        async with Redis.from_url(url) as other:
            before = asyncio.all_tasks()
            async with asyncio.timeout(60):
                async with running(Configuration(settings(url, model, tmp_path))):
                    await other.client_pause(3_600_000)
            assert asyncio.all_tasks() == before
