"""Of several controllers one leads, and its number grows with each take-over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest
from redis.asyncio import Redis

from gateway.scaling import leader as leader_module
from gateway.scaling.leader import LEADER_KEY, Leadership
from gateway.scaling.records import RECORD_KEY, PoolRecords
from tests.conftest import redis_server
from tests.gateway.conftest import eventually

pytestmark = pytest.mark.anyio

LEASE = 60.0
"""Seconds of a lease: far more than a test takes."""


class Clock:
    """The clock of the controllers, which goes on as the machine's does, but for what a test puts it ahead."""

    ahead = 0.0

    def __call__(self) -> float:
        return monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leader_module, "monotonic", clock)
    return clock


async def test_one_leads_until_its_lease_has_ended(redis: Redis, clock: Clock) -> None:
    """The next one has a higher number; the first one knows by its own clock that it leads no more."""
    first, second = Leadership(redis, LEASE), Leadership(redis, LEASE)
    await first.renew()
    await second.renew()
    number = first.fence
    assert number is not None and second.fence is None
    await first.renew()
    assert first.fence == number
    clock.ahead = LEASE
    assert first.fence is None
    await redis.hincrby(LEADER_KEY, "until", -int(1000 * LEASE))  # as after so long by Redis' clock
    await second.renew()
    assert second.fence is not None and second.fence > number
    await first.renew()
    assert first.fence is None


async def test_one_that_ends_well_leaves_at_once(redis: Redis) -> None:
    first, second = Leadership(redis, 2.0), Leadership(redis, 2.0)
    await first.start()
    await eventually(lambda: first.fence is not None)
    await second.start()
    leader = await PoolRecords(redis).leader()
    assert leader is not None and (leader.id, leader.fence) == (first.id, first.fence)
    before = first.fence
    await first.aclose()
    await eventually(lambda: second.fence is not None)
    assert before is not None and second.fence is not None and second.fence > before
    await second.aclose()
    leader = await PoolRecords(redis).leader()
    assert leader is not None and leader.seconds <= 0


async def test_a_lease_is_kept_for_as_long_as_its_controller_runs(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is renewed several times within its length, and ends later each time."""
    assert leader_module.RENEWALS > 2
    monkeypatch.setattr(leader_module, "RENEWALS", 100 * LEASE)
    first, second = Leadership(redis, LEASE), Leadership(redis, LEASE)
    await first.start()
    await eventually(lambda: first.fence is not None)
    number, ends = first.fence, list[int]()
    async with asyncio.timeout(20):
        while len(set(ends)) < 10:
            await second.renew()
            ends.append(int(await redis.hget(LEADER_KEY, "until") or 0))
            await asyncio.sleep(0.01)
    assert (first.fence, second.fence) == (number, None)
    assert ends == sorted(ends)
    await first.aclose()


async def test_numbers_grow_although_redis_has_lost_the_last_one(redis: Redis) -> None:
    first, second = Leadership(redis, 60.0), Leadership(redis, 60.0)
    await first.renew()
    await redis.delete(LEADER_KEY)
    await asyncio.sleep(0.002)
    await second.renew()
    assert first.fence is not None and second.fence is not None and second.fence > first.fence


async def test_without_redis_a_lease_ends_in_its_time(clock: Clock) -> None:
    server = redis_server()
    server.start()
    try:
        async with Redis.from_url(server.url) as client:
            leader = Leadership(client, LEASE)
            await leader.renew()
            assert leader.fence is not None
            server.stop()
            await leader.renew()
            assert leader.fence is not None
            clock.ahead = LEASE
            assert leader.fence is None
            server.start()
            await leader.renew()
            assert leader.fence is not None
    finally:
        server.stop()


def test_the_keys_are_documented() -> None:
    documented = Path("docs/redis-keys.md").read_text("utf-8")
    for key in (LEADER_KEY, RECORD_KEY.format(pool="<pool>")):
        assert f"| `{key}` |" in documented
