"""Heartbeats against a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.background import cancel
from gateway.storage import presence
from gateway.storage.neighbours import GONE
from gateway.storage.presence import CHANNEL, GATEWAY_KEY, GATEWAYS_KEY, LOST_KEY, Presence
from tests.conftest import redis_server

pytestmark = pytest.mark.anyio


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_url)
    await client.flushdb()
    yield client
    await client.aclose()


async def test_gateways_see_each_other_and_what_they_tell(redis: Redis) -> None:
    first, second = Presence(redis, lambda: {"turns": "3"}), Presence(redis)
    await first.beat()
    await second.beat()
    await first.beat()
    assert (first.others, second.others) == ({second.id}, {first.id})
    assert first.gateways == second.gateways == 2
    assert await presence.read(redis) == {
        first.id: {"id": first.id, "turns": "3"},
        second.id: {"id": second.id},
    }


@contextlib.asynccontextmanager
async def connected(redis: Redis, gateway: Presence) -> AsyncIterator[None]:
    """Hold the connection of a gateway that is not started."""
    connection = asyncio.create_task(gateway._stay_connected())
    await _counted(redis, gateway, 1)
    try:
        yield
    finally:
        await cancel([connection])
        await _counted(redis, gateway, 0)


async def _counted(redis: Redis, gateway: Presence, connections: int) -> None:
    while (await redis.pubsub_numsub(CHANNEL.format(id=gateway.id)))[0][1] != connections:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_killed_gateway_is_dead_and_its_death_is_known(redis: Redis) -> None:
    one, other = Presence(redis), Presence(redis)
    dead: list[str] = []
    other.on_death.append(dead.append)
    async with connected(redis, one):
        await one.beat()
        await other.beat()
        assert await other.alive(one.id)
    last = await redis.zscore(GATEWAYS_KEY, one.id)
    for _ in range(GONE):
        assert not dead
        await other.beat()
    assert (dead, other.others) == ([one.id], frozenset())
    assert not await other.alive(one.id)
    assert await other.died(one.id) == last
    assert await redis.zrange(GATEWAYS_KEY, 0, -1) == [other.id.encode()]
    assert list(await presence.read(redis)) == [other.id]


async def test_a_slow_gateway_is_not_dead_and_not_waited_for(redis: Redis) -> None:
    one, other = Presence(redis), Presence(redis)
    async with connected(redis, one):
        await one.beat()
        for _ in range(GONE + 2):
            await other.beat()
            assert await other.alive(one.id)


async def test_a_gateway_is_waited_for_while_its_death_is_in_doubt(redis: Redis) -> None:
    """It may have lost its connection, or be dead."""
    for back in (True, False):
        one, other = Presence(redis), Presence(redis)
        await one.beat()
        for _ in range(GONE - 1):
            await other.beat()
        waiting = asyncio.create_task(other.alive(one.id))
        await asyncio.sleep(0)
        assert not waiting.done()
        if back:
            await one.beat()
        for _ in range(2):
            await other.beat()
        assert await waiting == back
        assert await other.died(one.id) is None if back else await other.died(one.id)


@pytest.mark.parametrize("withdraws", [True, False])
async def test_one_that_ends_in_order_has_not_died(redis: Redis, withdraws: bool) -> None:
    """Even if another gateway took it for dead just before."""
    one = Presence(redis)
    one.withdraws = withdraws
    await one.start()
    await redis.zadd(LOST_KEY, {one.id: 5.0})
    await one.aclose()
    assert await Presence(redis).died(one.id) == (None if withdraws else 5.0)


async def test_one_that_was_taken_for_dead_is_alive_with_its_next_heartbeat(redis: Redis) -> None:
    one, other = Presence(redis), Presence(redis)
    returned: list[bool] = []
    one.on_return.append(lambda: returned.append(True))
    await one.beat()
    await one.beat()
    assert not returned
    for _ in range(GONE + 1):
        await other.beat()
    assert other.others == frozenset()
    assert await other.died(one.id) is not None
    await one.beat()
    assert await other.alive(one.id) and returned
    assert await other.died(one.id) is None
    await other.beat()
    assert other.others == {one.id}


async def test_one_that_has_never_been_seen_is_asked_for(redis: Redis) -> None:
    one, other = Presence(redis), Presence(redis)
    assert not await other.alive(one.id)
    await one.beat()
    assert await other.alive(one.id)


async def test_a_gateway_that_runs_is_connected(redis: Redis) -> None:
    one = Presence(redis)
    await one.start()
    await _counted(redis, one, 1)
    await one.aclose()
    await _counted(redis, one, 0)


async def test_facts_expire_and_lists_have_caps(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "MAX_GATEWAYS", 2)
    now = time.time()
    await redis.zadd(LOST_KEY, {"long ago": now - presence.LOST_LIFETIME - 10, "older": now - 20, "old": now - 10})
    await redis.zadd(GATEWAYS_KEY, {f"gw_{number}": now - 10 - number for number in range(3)})
    gateway, other = Presence(redis), Presence(redis)
    await gateway.beat()
    assert 0 < await redis.pttl(GATEWAY_KEY.format(id=gateway.id)) <= 1000 * presence.LIFETIME
    assert await redis.zrange(GATEWAYS_KEY, 0, -1) == [b"gw_0", gateway.id.encode()]
    await redis.zrem(GATEWAYS_KEY, "gw_0")
    for _ in range(GONE + 1):
        await other.beat()
    assert await redis.zrange(LOST_KEY, 0, -1) == [b"old", gateway.id.encode()]


async def test_a_full_redis_forgets_no_gateway() -> None:
    """Redis makes room by what has a time to live, least used first."""
    with redis_server() as url:
        async with Redis.from_url(url) as redis:
            one, other = Presence(redis), Presence(redis)
            await one.beat()
            for _ in range(GONE + 1):
                await other.beat()
            used = (await redis.info("memory"))["used_memory"]
            await redis.config_set("maxmemory", used + 2_000_000)
            await redis.config_set("maxmemory-policy", "volatile-lfu")
            for number in range(400):
                await redis.set(f"rh1:turn:{{flood}}:{number}", b"x" * 50_000, ex=3600)
            assert (await redis.info("stats"))["evicted_keys"] > 100
            assert await redis.zrange(GATEWAYS_KEY, 0, -1) == [other.id.encode()]
            assert await other.died(one.id) is not None


async def test_a_gateway_that_ends_withdraws(redis: Redis) -> None:
    begun = asyncio.Event()

    def facts() -> dict[str, str]:
        begun.set()
        return {}

    gateway, other = Presence(redis, facts), Presence(redis)
    await gateway.start()
    await begun.wait()
    await other.beat()
    await gateway.aclose()
    await other.beat()
    await other.beat()
    assert other.others == frozenset()
    assert not await other.alive(gateway.id)
    assert await other.died(gateway.id) is None


async def test_without_redis_it_keeps_what_it_knew() -> None:
    with redis_server() as url:
        client = Redis.from_url(url)
        gateway, other = Presence(client), Presence(client)
        await other.beat()
        await gateway.beat()
    await gateway.start()
    await asyncio.sleep(0.1)
    await gateway.aclose()
    assert gateway.gateways == 2
    with pytest.raises(RedisError):
        await gateway.died(other.id)
    await client.aclose()


def test_its_keys_are_documented() -> None:
    documented = Path("docs/redis-keys.md").read_text("utf-8")
    for key in (GATEWAY_KEY.format(id="<id>"), GATEWAYS_KEY, LOST_KEY, CHANNEL.format(id="<id>")):
        assert f"`{key}`" in documented
