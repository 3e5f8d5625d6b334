"""Settlements that Redis is told late, while turns come, go on and are cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.config.settings import Settings
from gateway.errors import RateLimited
from gateway.limits.limiter import Limiter
from gateway.limits.reservation import Reservation
from tests.gateway.limits.test_limiter import STILL, left, limiter_over, new_tenant, turn, used

pytestmark = pytest.mark.anyio


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_url)
    yield client
    await client.aclose()


class HeldScript:
    """The limiter's script, of which the calls of one operation wait until they are let go."""

    def __init__(self, limiter: Limiter, operation: str, *, answered: bool = False) -> None:
        """Args: answered: whether Redis has carried them out by then."""
        self._script: Any = limiter._script
        self._operation = operation
        self._answered = answered
        self.begun, self.open = asyncio.Event(), asyncio.Event()
        self.sent: list[tuple[str, str]] = []
        """Operation and reservation of each call, as they were sent to Redis."""
        limiter._script = self  # type: ignore[assignment]

    async def __call__(self, keys: Any, args: Any) -> Any:
        held = args[0] == self._operation
        if held and not self._answered:
            await self._hold()
        self.sent.append((args[0], args[2]))
        reply = await self._script(keys=keys, args=args)
        if held and self._answered:
            await self._hold()
        return reply

    async def _hold(self) -> None:
        self.begun.set()
        await self.open.wait()


async def granted_without_redis(limiter: Limiter, tenant: str, id: str, tokens: int) -> Reservation:
    """Reserve while Redis does not answer: it is to be told later."""
    script, broken = limiter._script, Redis.from_url("unix:///nonexistent/redis.sock")
    limiter._script = broken.register_script("return 1")
    reservation = await limiter.reserve(tenant, id, turn(tokens), STILL)
    limiter._script = script
    await broken.aclose()
    assert reservation.local
    return reservation


async def cut_off(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("answered", [False, True])
async def test_what_is_sent_late_is_not_lost_with_the_turn_that_sends_it(redis: Redis, answered: bool) -> None:
    """Nor charged twice, if Redis was told before its client went away."""
    limiter, tenant = limiter_over(redis), new_tenant()
    await limiter.settle(await granted_without_redis(limiter, tenant, "t1", 500), used(300))
    script = HeldScript(limiter, "charge", answered=answered)
    async with asyncio.timeout(30):
        next_turn = asyncio.create_task(limiter.reserve(tenant, "t2", turn(1), STILL))
        await script.begun.wait()
        await cut_off(next_turn)
        script.open.set()
        await limiter.catch_up()
    assert left(await limiter.read(tenant, STILL)) == 700


@pytest.mark.parametrize("answered", [False, True])
async def test_a_settlement_that_nobody_waits_for_any_more_is_sent_again(redis: Redis, answered: bool) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    reservation = await limiter.reserve(tenant, "t1", turn(500), STILL)
    script = HeldScript(limiter, "settle", answered=answered)
    async with asyncio.timeout(30):
        settling = asyncio.create_task(limiter.settle(reservation, used(100)))
        await script.begun.wait()
        await cut_off(settling)
        script.open.set()
        await limiter.catch_up()
    assert left(await limiter.read(tenant, STILL)) == 900


async def test_redis_decides_nothing_while_late_settlements_are_on_their_way(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    await granted_without_redis(limiter, tenant, "t1", 900)
    script = HeldScript(limiter, "hold")
    async with asyncio.timeout(30):
        first = asyncio.create_task(limiter.reserve(tenant, "t2", turn(10), STILL))
        await script.begun.wait()
        second = asyncio.create_task(limiter.reserve(tenant, "t3", turn(200), STILL))
        await asyncio.sleep(0)
        script.open.set()
        await first
        with pytest.raises(RateLimited):
            await second
    assert script.sent[0] == ("hold", "t1")


async def test_a_turn_that_grows_while_it_is_held_late_holds_nothing_after_its_end(redis: Redis) -> None:
    """Redis is told of its growth before its end, although it was told meanwhile that the turn runs."""
    now, tenant = [1000.0], new_tenant()
    limiter = Limiter(redis, Settings(), clock=lambda: now[0])
    reservation = await granted_without_redis(limiter, tenant, "t1", 100)
    script = HeldScript(limiter, "hold")
    async with asyncio.timeout(30):
        telling = asyncio.create_task(limiter.catch_up())
        await script.begun.wait()
        for _ in range(5):
            limiter._breaker.failed(now[0])  # other calls get no answer
        await limiter.extend(reservation, turn(200), STILL)
        script.open.set()
        await telling
        now[0] += 60
        await limiter.settle(reservation, used(50))
        while limiter._late:
            await limiter.catch_up()
    assert left(await limiter.read(tenant, STILL)) == 950
