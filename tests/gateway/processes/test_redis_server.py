"""The embedded Redis."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.config.settings import RedisSettings, Settings, SettingsError
from gateway.processes import redis_server
from gateway.processes.child import Child
from gateway.storage import connect

pytestmark = pytest.mark.anyio


def settings_in(folder: str | Path, url: str | None = None) -> Settings:
    return Settings(redis=RedisSettings(data=str(folder), url=url, timeout=1.0))


async def test_it_runs_on_its_socket_and_remembers_over_a_restart() -> None:
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:
        settings = settings_in(folder)
        for expected in (None, b"blue"):
            child = Child("redis", redis_server.command(settings))
            task = asyncio.create_task(child.run())
            async with connect.connect(settings) as client:
                await answering(client)
                assert await client.get("colour") == expected
                await client.set("colour", "blue")
            await child.stop()
            await task


async def answering(client: Redis) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await client.ping()
                return
            except (OSError, RedisError):
                await asyncio.sleep(0.02)


def test_a_redis_on_the_path_is_preferred_to_the_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert redis_server.binary() == redis_server.bundled()
    own = tmp_path / "redis-server"
    own.touch(mode=0o755)
    assert redis_server.binary() == str(own)


def test_a_configured_redis_is_used_instead() -> None:
    assert connect.redis_url(settings_in("/tmp", url="redis://elsewhere")) == "redis://elsewhere"


def test_a_path_too_long_for_a_socket_is_refused_with_the_remedy() -> None:
    with pytest.raises(SettingsError, match="ROUNDHOUSE_REDIS_DATA"):
        connect.embedded_url(settings_in("/tmp/" + "x" * 120))
