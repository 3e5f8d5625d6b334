"""What one gateway finds of the turns of another that is gone, or seemed to be: two of them, with a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.access.identity import Principal
from gateway.config.settings import TurnSettings
from gateway.errors import NotFound
from gateway.protocol.requests import Message, TurnRequest
from gateway.protocol.stream import Finished, Routed, TextDelta, TokenUsage
from gateway.storage.presence import LOST_KEY, Presence
from gateway.turns import Turn, Turns
from gateway.turns.ids import ResponseIds
from gateway.turns.records import TurnRecords
from tests.gateway.conftest import eventually
from tests.gateway.turns.contexts import context

pytestmark = pytest.mark.anyio

ALICE = Principal("alice", "key")
ROUTED = Routed(tier="small", model="m", replica="small-0", reason="requested", complexity=None)
REQUEST = TurnRequest(model="auto", messages=(Message("user", "why?"),))
SECRET = b"s" * 32


class Held:
    """A pipeline whose answers end once `ends` is set."""

    def __init__(self) -> None:
        self.ends = asyncio.Event()

    async def run(self, turn: Turn) -> None:
        turn.append(ROUTED)
        turn.append(TextDelta("hello"))
        await self.ends.wait()
        turn.append(Finished("stop", TokenUsage(1, 0, 1)))


@contextlib.asynccontextmanager
async def gateway(redis_url: str, pipeline: Held) -> AsyncIterator[tuple[Turns, Presence]]:
    """The turns of one gateway, and its heartbeat."""
    async with Redis.from_url(redis_url) as redis, Redis.from_url(redis_url) as reader:
        presence = Presence(redis)
        turns = Turns(pipeline, TurnSettings(), context(redis), ResponseIds(SECRET, presence.id))
        await presence.start()
        await turns.share(redis, reader, presence, SECRET)
        try:
            yield turns, presence
        finally:
            await turns.aclose()
            await presence.aclose()


def code_of(turn: Turn) -> str | None:
    """The code of the error with which the turn has failed."""
    end = turn.log.finished
    return end.error.code if end is not None and end.error is not None else None


async def test_a_gateway_that_comes_back_between_two_looks_is_asked(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as dead at the first look, and nothing is kept of its turn yet."""
    pipeline = Held()
    async with gateway(redis_url, pipeline) as (one, its), gateway(redis_url, pipeline) as (other, presence):
        started = await one.start(REQUEST, ALICE)
        await eventually(lambda: its.id in presence.others)
        alive = presence.alive

        async def dead_at_first(id: str) -> bool:
            monkeypatch.setattr(presence, "alive", alive)
            return False

        monkeypatch.setattr(presence, "alive", dead_at_first)
        found = await other.find(started.turn.id, ALICE)
        assert not found.finished
        pipeline.ends.set()
        await eventually(lambda: found.finished)
        assert (found.log.text, code_of(found)) == ("hello", None)


async def test_a_gateway_that_ends_before_everything_is_stored_counts_as_dead(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis takes too long for its last writes; its turns have failed and are not unknown."""

    async def never(self: TurnRecords) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("gateway.storage.presence.BEAT", 0.05)
    monkeypatch.setattr("gateway.turns.remote.FLUSH_TIMEOUT", 0.05)
    monkeypatch.setattr(TurnRecords, "run", never)
    pipeline = Held()
    pipeline.ends.set()
    async with gateway(redis_url, pipeline) as (other, presence):
        async with gateway(redis_url, pipeline) as (one, its):
            started = await one.start(REQUEST, ALICE)
            await eventually(lambda: started.turn.finished and its.id in presence.others)
        assert code_of(await other.find(started.turn.id, ALICE)) == "gateway_lost"


@pytest.mark.parametrize(("died", "found"), [(-30.0, True), (30.0, True), (300.0, False)])
async def test_a_turn_that_began_around_its_gateways_last_heartbeat_has_failed(
    redis_url: str, died: float, found: bool
) -> None:
    """Also one that began after it, while its gateway was cut off from Redis. What began long before had been kept."""
    dead = "gw_" + "d" * 16
    id = ResponseIds(SECRET, dead).new("alice")
    async with gateway(redis_url, Held()) as (other, _), Redis.from_url(redis_url) as redis:
        await redis.zadd(LOST_KEY, {dead: time.time() + died})
        if found:
            assert code_of(await other.find(id, ALICE)) == "gateway_lost"
        else:
            with pytest.raises(NotFound):
                await other.find(id, ALICE)
        with pytest.raises(NotFound):
            await other.find(id, Principal("bob", "key"))
