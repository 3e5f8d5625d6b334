"""Counters of the caches."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from cache.keys import PREFIX, TENANTS_KEY, statistics_key
from cache.policy import Bypass, Reject
from cache.statistics import COUNTERS, REASONS, CacheCounter, meaning, read, read_by_hour
from tests.conftest import redis_server
from tests.cutting_proxy import CuttingProxy

pytestmark = pytest.mark.anyio


async def test_counts_add_up_over_flushes_and_gateways(redis: Redis) -> None:
    first, second = CacheCounter(redis), CacheCounter(redis)
    for statistics in (first, second, first):
        statistics.add("acme", "exact_hit", 2)
        await statistics.flush()
    second.add("globex", "exact_miss")
    await second.flush()
    sums = await read(redis)
    assert sums["acme"]["exact_hit"] == 6
    assert sums["globex"]["exact_miss"] == 1
    assert set(await read(redis, tenant="acme")) == {"acme"}


async def test_hours_are_told_apart_and_add_up(redis: Redis) -> None:
    """The oldest first, of one tenant or of all; hours of which nothing is known are left out."""
    now = time.time()
    names = [time.strftime("%Y%m%d%H", time.gmtime(now - 3600 * back)) for back in (0, 2, 30)]
    for tenant, name, amount in (("acme", names[0], 2), ("acme", names[1], 3), ("globex", names[1], 4)):
        await redis.hset(statistics_key(tenant, name), "exact_hit", amount)
        await redis.zadd(TENANTS_KEY, {tenant: now})
    await redis.hset(statistics_key("acme", names[2]), "exact_hit", 9)
    own = await read_by_hour(redis, tenant="acme")
    assert list(own.items()) == [(names[1], {"exact_hit": 3}), (names[0], {"exact_hit": 2})]
    assert await read_by_hour(redis) == {names[1]: {"exact_hit": 7}, names[0]: {"exact_hit": 2}}
    assert (await read(redis))["acme"] == {"exact_hit": 5}


async def test_every_key_expires(redis: Redis) -> None:
    statistics = CacheCounter(redis)
    statistics.add("acme", "exact_hit")
    await statistics.flush()
    keys = [key async for key in redis.scan_iter(match=f"{PREFIX}:*")]
    assert TENANTS_KEY.encode() in keys
    assert all([await redis.ttl(key) > 0 for key in keys])


async def test_what_is_counted_while_redis_is_down_is_written_later() -> None:
    server = redis_server()
    with server as url:
        client = Redis.from_url(url, socket_timeout=20, socket_connect_timeout=20)
        statistics = CacheCounter(client)
        server.stop()
        statistics.add("acme", "exact_hit", 3)
        await statistics.flush()
        server.start()
        statistics.add("acme", "exact_hit", 4)
        await statistics.flush()
        assert (await read(client))["acme"]["exact_hit"] == 7
        await client.aclose()


async def test_counts_whose_reply_was_lost_are_counted_once(redis_url: str) -> None:
    """And what was counted meanwhile is written beside them."""
    async with CuttingProxy(redis_url).running() as proxy:
        client = Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0))
        await client.flushdb()
        statistics = CacheCounter(client)
        statistics.add("acme", "exact_hit")
        await statistics.flush()
        statistics.add("acme", "exact_hit", 3)
        proxy.cut_reply_to = b"EVALSHA"  # not that to the question whether Redis knows the script
        await statistics.flush()
        assert proxy.cuts == 1
        statistics.add("acme", "exact_hit", 5)
        await statistics.flush()
        assert (await read(client))["acme"]["exact_hit"] == 9
        await client.aclose()


async def test_a_flush_ends_only_when_what_was_counted_before_it_is_written(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while another flush is under way."""
    statistics = CacheCounter(redis)
    write, gates = statistics._write, [asyncio.Event(), asyncio.Event(), asyncio.Event()]
    begun = iter(gates)

    async def slowly() -> None:
        await next(begun).wait()
        await write()

    monkeypatch.setattr(statistics, "_write", slowly)
    statistics.add("acme", "exact_miss")
    async with asyncio.timeout(30), asyncio.TaskGroup() as flushes:
        flushes.create_task(statistics.flush())
        await asyncio.sleep(0)
        statistics.add("acme", "exact_join", 99)
        second = flushes.create_task(statistics.flush())
        await asyncio.sleep(0)
        gates[0].set()
        gates[1].set()
        await second
        assert (await read(redis))["acme"] == {"exact_miss": 1, "exact_join": 99}
        gates[2].set()


def test_every_counter_and_reason_is_documented() -> None:
    documented = Path("docs/caching.md").read_text("utf-8")
    for word in [*COUNTERS, *(f"{kind}.<reason>" for kind in REASONS), *Bypass, *Reject]:
        assert f"`{word}`" in documented


@pytest.mark.parametrize(
    ("counter", "said"),
    [
        ("exact_hit", "answers served from the response cache"),
        ("exact_reject.canary", "answers that were not stored"),
        ("exact_hit.what", "not known to this version"),
    ],
)
def test_every_counter_has_a_meaning(counter: str, said: str) -> None:
    assert meaning(counter) == said
