"""A server behind three real sentinels, with passwords: it is found, and found again after it was killed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from gateway.config.settings import RedisSettings, Settings
from gateway.storage.connect import connect
from tests.redis_topologies import replicated

pytestmark = pytest.mark.anyio


async def test_a_killed_primary_is_replaced(tmp_path: Path) -> None:
    with replicated(password="a/b@c") as servers:
        settings = Settings(redis=RedisSettings(url=servers.url("default:a%2Fb%40c@"), data=str(tmp_path)))
        async with connect(settings, timeout=1) as redis:
            async with redis.pipeline(transaction=False) as pipeline:
                pipeline.set("before", 1)
                pipeline.execute_command("WAIT", 1, 5000)
                assert await pipeline.execute() == [True, 1]
            killed = servers.primary
            servers.servers[killed].kill()
            servers.sentinels[0].kill()  # those that are left are enough
            deadline = time.monotonic() + 30
            while True:
                try:
                    assert await redis.get("before") == b"1"
                    assert await redis.incr("after")
                    break
                except RedisError:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.1)
            async with redis.pipeline(transaction=True) as pipeline:
                assert await pipeline.incr("after").execute() == [2]
        assert servers.info(1 - killed)["role"] == "master"
