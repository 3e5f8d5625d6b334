"""The response cache against a real Redis."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.keys import epoch_key, index_key, response_key
from cache.response import Entry, ResponseCache
from tests.conftest import redis_server

pytestmark = pytest.mark.anyio

ENTRY = Entry(text="Grüße, 世界", model="m", tier="small", input_tokens=5, output_tokens=3, created=1.5)


def cache_over(redis: Redis, *, ttl: float = 60, max_entries: int = 100) -> ResponseCache:
    return ResponseCache(redis, ttl=ttl, max_entries=max_entries)


async def test_what_was_stored_is_found(redis: Redis) -> None:
    cache = cache_over(redis)
    lookup = await cache.get("acme", "d1")
    assert lookup.entry is None
    assert await cache.put("acme", "d1", ENTRY, epoch=lookup.epoch) == 0
    assert (await cache.get("acme", "d1")).entry == ENTRY


async def test_tenants_never_share_an_entry(redis: Redis) -> None:
    cache = cache_over(redis)
    await cache.put("acme", "d1", ENTRY, epoch="0")
    assert (await cache.get("globex", "d1")).entry is None


async def test_an_operator_can_read_an_entry(redis: Redis) -> None:
    await cache_over(redis).put("acme", "d1", ENTRY, epoch="0")
    fields = await redis.hgetall(response_key("acme", "d1"))
    assert fields[b"text"].decode() == ENTRY.text
    assert fields[b"output_tokens"] == b"3"


async def test_every_key_expires(redis: Redis) -> None:
    cache = cache_over(redis, ttl=60)
    await cache.put("acme", "d1", ENTRY, epoch="0")
    await cache.invalidate("acme")
    for key in (response_key("acme", "d1"), index_key("acme"), epoch_key("acme")):
        assert 0 < await redis.ttl(key) <= 120


async def test_invalidation_is_seen_at_once_by_every_gateway(redis: Redis, redis_url: str) -> None:
    other = Redis.from_url(redis_url)
    await cache_over(redis).put("acme", "d1", ENTRY, epoch="0")
    await cache_over(other).invalidate("acme")
    assert (await cache_over(redis).get("acme", "d1")).entry is None
    await other.aclose()


async def test_an_answer_begun_before_an_invalidation_is_not_stored_after_it(redis: Redis) -> None:
    cache = cache_over(redis)
    lookup = await cache.get("acme", "d1")
    await cache.invalidate("acme")
    await cache.put("acme", "d1", ENTRY, epoch=lookup.epoch)
    assert (await cache.get("acme", "d1")).entry is None
    assert not await redis.exists(response_key("acme", "d1"))


async def test_the_oldest_answers_leave_when_the_cap_is_reached(redis: Redis) -> None:
    cache = cache_over(redis, max_entries=3)
    for number in range(5):
        await cache.put("acme", f"d{number}", ENTRY, epoch="0")
        await asyncio.sleep(0.002)
    kept = [number for number in range(5) if (await cache.get("acme", f"d{number}")).entry]
    assert kept == [2, 3, 4]


async def test_concurrent_stores_keep_the_cap(redis: Redis) -> None:
    cache = cache_over(redis, max_entries=10)
    evicted = await asyncio.gather(*(cache.put("acme", f"d{number}", ENTRY, epoch="0") for number in range(50)))
    assert await redis.zcard(index_key("acme")) == 10
    assert len([key async for key in redis.scan_iter(match=response_key("acme", "*"))]) == 10
    assert sum(evicted) == 40


@pytest.mark.parametrize(
    "fields",
    [{"format": "0"}, {"output_tokens": "many"}, {"text": b"\xff\xfe"}],
    ids=["other format", "wrong type", "not UTF-8"],
)
async def test_an_entry_that_cannot_be_read_is_a_miss(redis: Redis, fields: dict[str, str | bytes]) -> None:
    cache = cache_over(redis)
    await cache.put("acme", "d1", ENTRY, epoch="0")
    await redis.hset(response_key("acme", "d1"), mapping=fields)  # type: ignore[arg-type]
    assert (await cache.get("acme", "d1")).entry is None


async def test_a_missing_field_is_a_miss(redis: Redis) -> None:
    cache = cache_over(redis)
    await cache.put("acme", "d1", ENTRY, epoch="0")
    await redis.hdel(response_key("acme", "d1"), "model")
    assert (await cache.get("acme", "d1")).entry is None


async def test_a_dead_redis_is_a_miss_and_never_an_error() -> None:
    server = redis_server()
    with server as url:
        client = Redis.from_url(url, socket_timeout=0.5, socket_connect_timeout=0.5)
        cache = cache_over(client)
        await cache.put("acme", "d1", ENTRY, epoch="0")
        server.stop()
        assert (await cache.get("acme", "d1")).entry is None
        assert await cache.put("acme", "d2", ENTRY, epoch="0") == 0
        with pytest.raises((RedisError, OSError)):
            await cache.invalidate("acme")
        await client.aclose()


def test_the_entry_survives_its_own_fields() -> None:
    """All fields convert back from text, which is what a HASH holds."""
    texts = {name: str(value) for name, value in msgspec.to_builtins(ENTRY).items()}
    assert msgspec.convert(texts, Entry, strict=False) == ENTRY
