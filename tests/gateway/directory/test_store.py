"""The directory in a real Redis: writes, reads, lists, refusals, idempotency."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.directory.audit_log import AuditLog
from gateway.directory.records import Key, Tenant
from gateway.directory.store import Directory

pytestmark = pytest.mark.anyio

SECRET = b"s" * 32
ACME = Tenant(name="acme")


def key(number: int, **fields: object) -> Key:
    return Key(**{"id": f"key_{number}", "tenant": "acme", "digest": f"{number:064x}", **fields})  # type: ignore[arg-type]


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        yield redis


@pytest.fixture
def directory(redis: Redis) -> Directory:
    return Directory(redis, secret=SECRET)


async def test_what_is_written_can_be_read(redis: Redis, directory: Directory) -> None:
    """With revision and times."""
    written = await directory.write(ACME, actor="cli:test", expected=0)
    assert written.revision == 1
    assert written.created_at == written.updated_at > 0
    assert await directory.get(Tenant, "acme") == written
    verifier, problem = await AuditLog(redis, secret=SECRET).verify()
    assert problem is None
    assert verifier.entries == 1
