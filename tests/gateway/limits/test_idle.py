"""Redis never drops limits to make room; gateways delete those that nobody uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from gateway.config.settings import LimitSettings, Settings
from gateway.limits.idle import KEEP, TENANTS_KEY, IdleLimits
from gateway.limits.limiter import Limiter
from gateway.limits.script import keys
from gateway.records.quota import Amounts, LimitSubject, Quota
from tests.conftest import redis_server

pytestmark = pytest.mark.anyio

BUDGET = (LimitSubject("tenant", Quota(spend_per_month=1000)),)


@pytest.fixture
def small() -> Iterator[str]:
    """A Redis whose settings a test may change."""
    with redis_server() as url:
        yield url


async def test_another_tenants_flood_takes_no_budget_away(small: str) -> None:
    """Redis makes room by what has a time to live, least used first; what was spent stays."""
    async with Redis.from_url(small) as redis:
        limiter = Limiter(redis, Settings(limits=LimitSettings()))
        for id in ("settled", "held"):
            reservation = await limiter.reserve("careful", id, Amounts(requests=1, turns=1, spend=400), BUDGET)
            if id == "settled":
                await limiter.settle(reservation, Amounts(spend=400))
        before = (await limiter.read("careful", BUDGET)).readings
        used = (await redis.info("memory"))["used_memory"]
        await redis.config_set("maxmemory", used + 2_000_000)
        await redis.config_set("maxmemory-policy", "volatile-lfu")
        for number in range(400):
            await redis.set(f"rh1:turn:{{flood}}:{number}", b"x" * 50_000, ex=3600)
        assert (await redis.info("stats"))["evicted_keys"] > 100
        assert await redis.exists(*keys("careful")) == 3
        after = (await limiter.read("careful", BUDGET)).readings
        assert [reading.remaining for reading in (*before, *after)] == [200, 200]


async def test_what_nobody_has_used_for_long_is_deleted(redis_url: str) -> None:
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        limiter = Limiter(redis, Settings(limits=LimitSettings()))
        now = float((await redis.time())[0])
        idle = IdleLimits(redis)
        for tenant in ("old", "new", "noted and gone"):
            idle.used(tenant)
        await idle.sweep(now - KEEP - 10)
        for tenant in ("old", "new"):
            await limiter.settle(await limiter.reserve(tenant, tenant, Amounts(spend=1), BUDGET), Amounts(spend=1))
        await redis.hset(keys("old")[0], "clock", int(1000 * (now - KEEP - 10)))  # type: ignore[misc]
        await idle.sweep(now)
        assert not await redis.exists(*keys("old"))
        assert await redis.exists(keys("new")[0])
        await idle.sweep(now)  # it is used still
        assert [name.decode() for name in await redis.zrange(TENANTS_KEY, 0, -1)] == ["new"]
        await redis.flushall()


async def test_a_limit_of_an_earlier_version_loses_its_time_to_live(redis_url: str) -> None:
    """With the first use of a new day."""
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        limiter = Limiter(redis, Settings(limits=LimitSettings()))
        await limiter.reserve("acme", "turn", Amounts(requests=1, turns=1, spend=1), BUDGET)
        clock = int(await redis.hget(keys("acme")[0], "clock") or 0)  # type: ignore[misc]
        await redis.hset(keys("acme")[0], "clock", clock - 86_400_000)  # type: ignore[misc]
        for key in keys("acme"):
            await redis.expire(key, 1000)
        await limiter.read("acme", BUDGET)
        assert [await redis.ttl(key) for key in keys("acme")] == [-1, -1, -1]
        await redis.flushall()
