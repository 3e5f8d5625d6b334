"""Heartbeats against a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.storage import presence
from gateway.storage.presence import GATEWAY_KEY, GATEWAYS_KEY, Presence

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


async def test_a_gateway_whose_heartbeat_has_expired_is_gone(redis: Redis) -> None:
    first, second = Presence(redis), Presence(redis)
    await first.beat()
    await second.beat()
    assert await presence.alive(redis, first.id)
    await redis.delete(GATEWAY_KEY.format(id=first.id))  # as its end of life does
    assert not await presence.alive(redis, first.id)
    await second.beat()
    assert second.others == frozenset()
    assert await redis.zrange(GATEWAYS_KEY, 0, -1) == [second.id.encode()]
    assert list(await presence.read(redis)) == [second.id]


async def test_a_gateway_is_waited_for_when_redis_has_forgotten_it(redis: Redis) -> None:
    """As it does with all when its clock is set ahead."""
    one, other = Presence(redis), Presence(redis)
    await one.beat()
    await other.beat()
    for beats in range(presence.DEATHS):
        await redis.delete(GATEWAY_KEY.format(id=one.id))
        for _ in range(beats):
            await other.beat()
        waiting = asyncio.create_task(other.comes_back(one.id))
        await asyncio.sleep(0)
        assert not waiting.done()
        await one.beat()
        assert await waiting
        await other.beat()


async def test_a_gateway_that_stays_away_is_given_up(redis: Redis) -> None:
    one, other = Presence(redis), Presence(redis)
    await one.beat()
    await other.beat()
    await redis.delete(GATEWAY_KEY.format(id=one.id))
    waiting = asyncio.create_task(other.comes_back(one.id))
    for _ in range(presence.DEATHS):
        await other.beat()
    assert not await waiting
    assert not await other.comes_back("gw_never_seen")


async def test_every_key_expires(redis: Redis) -> None:
    gateway = Presence(redis)
    await gateway.beat()
    assert 0 < await redis.pttl(GATEWAY_KEY.format(id=gateway.id)) <= 1000 * presence.LIFETIME
    assert await redis.ttl(GATEWAYS_KEY) > 0


async def test_a_gateway_that_ends_withdraws(redis: Redis) -> None:
    begun = asyncio.Event()

    def facts() -> dict[str, str]:
        begun.set()
        return {}

    gateway, other = Presence(redis, facts), Presence(redis)
    await gateway.start()
    await begun.wait()
    await gateway.aclose()
    await other.beat()
    assert other.others == frozenset()
    assert not await presence.alive(redis, gateway.id)


async def test_without_redis_it_keeps_what_it_knew() -> None:
    gateway = Presence(Redis.from_url("unix:///nowhere.sock"))
    gateway.others = frozenset({"gw_other"})
    await gateway.start()
    await asyncio.sleep(0)
    await gateway.aclose()
    assert gateway.gateways == 2


def test_its_keys_are_documented() -> None:
    documented = Path("docs/redis-keys.md").read_text("utf-8")
    for key in (GATEWAY_KEY.format(id="<id>"), GATEWAYS_KEY):
        assert f"`{key}`" in documented
