"""Pools that sleep: turns wait for them, or another tier answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.config.settings import RouterSettings
from gateway.engines.wanted import LIFETIME, WANTED_KEY
from gateway.errors import Unavailable
from gateway.protocol.requests import TurnRequest
from gateway.protocol.stream import Finished
from tests.gateway.conftest import EngineThread, Serve, Served, eventually
from tests.gateway.engines.test_leases import FIRST, Board, board, names
from tests.gateway.pipeline.turns import DEMO, request, routes, run

__all__ = ["board"]

pytestmark = pytest.mark.anyio

SLEEPS = {"registered": True, "min_replicas": 0}
KEY = WANTED_KEY.format(pool="small")


async def until_wanted(redis: Redis, turns: int) -> None:
    async with asyncio.timeout(20):
        while await redis.zcard(KEY) != turns:  # noqa: ASYNC110  Redis has no event for it
            await asyncio.sleep(0.01)


async def start(served: Served, asked: TurnRequest) -> tuple[Any, asyncio.Task[list[Any]]]:
    """Start a turn that waits; returns it and the task that reads its events."""
    viewer = await served.gateway.turns.start(asked, DEMO)

    async def read() -> list[Any]:
        with viewer:
            return [entry.event async for entry in viewer.entries() if entry.event is not None]

    return viewer.turn, asyncio.create_task(read())


async def test_a_turn_for_a_sleeping_pool_waits_until_it_wakes(
    serve: Serve, board: Board, engine: EngineThread, redis_url: str
) -> None:
    """The gateway is ready all the while; the client is told, and so is whoever starts engines."""
    async with serve(engines={"small": []}, pool=SLEEPS) as served, Redis.from_url(redis_url) as redis:
        gateway = served.gateway
        assert (gateway.engines.problems(), gateway.engines.serves) == ([], True)
        turn, reading = await start(served, request())
        await until_wanted(redis, 1)
        assert gateway.wanted.waiting("small") == 1
        assert 0 < await redis.ttl(KEY) <= LIFETIME
        assert turn.log.routed is not None and turn.log.routed.reason == "waking"
        await board.announce(FIRST, engine.address)
        events = await reading
        assert [(route.reason, route.replica) for route in routes(events)] == [("waking", ""), ("mixture", FIRST)]
        assert isinstance(events[-1], Finished) and events[-1].usage.output_tokens == 4
        await until_wanted(redis, 0)
        assert gateway.wanted.waiting("small") == 0
        await served.settle()


async def test_it_waits_no_longer_than_a_turn_may(serve: Serve) -> None:
    async with serve(engines={"small": []}, pool=SLEEPS, turns={"queue_timeout": 0.2}) as served:
        finished = (await run(served, request()))[-1]
        assert isinstance(finished, Finished) and isinstance(finished.error, Unavailable)
        assert "has started in time" in str(finished.error)
        assert finished.usage.output_tokens == 0
        await served.settle()


async def test_a_turn_that_is_cancelled_waits_no_longer(serve: Serve, redis_url: str) -> None:
    async with serve(engines={"small": []}, pool=SLEEPS) as served, Redis.from_url(redis_url) as redis:
        turn, reading = await start(served, request(model="small"))
        await until_wanted(redis, 1)
        turn.cancel()
        finished = (await reading)[-1]
        assert isinstance(finished, Finished) and (finished.reason, finished.error) == ("cancelled", None)
        await until_wanted(redis, 0)
        await served.settle()


async def test_another_tier_answers_for_auto_where_it_may(
    serve: Serve, board: Board, engine: EngineThread, redis_url: str
) -> None:
    """The pool is wanted all the same; a turn that names it waits."""
    pool = {**SLEEPS, "when_asleep": "other_tier"}
    tiers: dict[str, list[str]] = {"small": [], "large": [engine.address]}
    router = RouterSettings(by_complexity=True)
    async with serve(engines=tiers, pool=pool, router=router) as served, Redis.from_url(redis_url) as redis:
        await eventually(lambda: not served.gateway.engines.pools[-1].asleep)
        [route] = routes(await run(served, request()))
        assert (route.tier, route.reason) == ("large", "fallback")
        assert "the small tier is asleep, the large tier stands in" in route.reasons
        await until_wanted(redis, 1)
        _, reading = await start(served, request(model="small"))
        await until_wanted(redis, 2)
        await board.announce(FIRST, engine.address)
        assert [each.tier for each in routes(await reading)] == ["small", "small"]
        assert names(served) == {FIRST: True}
        await served.settle()
