"""A directory in an empty, real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.access.directory.store import Directory
from gateway.records.directory import Key

SECRET = b"s" * 32


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """A client of an empty Redis."""
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        yield redis


@pytest.fixture
def directory(redis: Redis) -> Directory:
    """An empty directory."""
    return Directory(redis, secret=SECRET)


def key(number: int, **fields: Any) -> Key:
    """A key of the tenant acme."""
    return Key(**{"id": f"key_{number}", "tenant": "acme", "digest": f"{number:064x}", **fields})
