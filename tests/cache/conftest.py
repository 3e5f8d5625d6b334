"""A client of the real Redis for the cache's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """A client of an empty database."""
    client = Redis.from_url(redis_url)
    await client.flushdb()
    yield client
    await client.aclose()
