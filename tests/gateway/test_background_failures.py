"""Work beside the turns that fails: counted in its gateway's metrics, whoever has begun it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cache.response import ResponseCache
from gateway.access.identity import Principal
from gateway.background import observe_failure
from gateway.config.settings import PoolSettings, RouterSettings, TurnSettings
from gateway.engines.pools import Engines
from gateway.errors import ApiError
from gateway.pipeline.routing import shadows
from gateway.pipeline.routing.shadows import Shadows
from gateway.pipeline.sources.semantic_cache import SimilarAnswers
from gateway.pipeline.sources.single_flight import Flights
from gateway.protocol.requests import Message, TurnRequest
from gateway.turns import Turns
from gateway.turns.feeds import Feeds
from gateway.turns.following import Followings
from gateway.turns.messages import FollowTurn
from tests.gateway.test_app import fault
from tests.gateway.turns.contexts import context

pytestmark = pytest.mark.anyio

Begin = Callable[[], object]


def replicas(model: Path, patch: pytest.MonkeyPatch) -> Begin:
    patch.setattr("gateway.engines.pools.Pool.relieved", fault)
    return _engines(model, (1, []))


def engine_connections(model: Path, patch: pytest.MonkeyPatch) -> Begin:
    patch.setattr("engine.client.link.Link.connect", fault)
    return _engines(model, (0, ["ws://127.0.0.1:1"]))


def _engines(model: Path, change: tuple[int, list[str]]) -> Begin:
    """A change of the configuration, which some request has asked for."""
    before, after = change
    pools = [
        [PoolSettings(tier="small", name="tiny", model=str(model), engines=addresses)]
        for addresses in (["ws://127.0.0.1:2"] * before, after)
    ]
    engines = Engines(pools[0], RouterSettings())
    return lambda: engines.configure(pools[1], RouterSettings())


def feeds(model: Path, patch: pytest.MonkeyPatch) -> Begin:
    showing = Feeds(fault, fault, lambda gateway: True, pause=0)
    return lambda: showing.follow(FollowTurn("resp_1", "acme", "reader", 1, -1, True))


def follows(model: Path, patch: pytest.MonkeyPatch) -> Begin:
    following = Followings("here", fault, fault)
    return lambda: asyncio.create_task(following.follow("resp_1", "acme", "there"))


def copies(model: Path, patch: pytest.MonkeyPatch) -> Begin:
    patch.setattr(shadows, "repeatable", lambda turn: True)
    patch.setattr(Shadows, "_answer", fault)
    copying: Any = Shadows(*[cast(Any, None)] * 5)
    route = SimpleNamespace(name="assistant", shadow=SimpleNamespace(model="tiny"))
    return lambda: copying.begin(route, SimpleNamespace(turn=None), None, ApiError("failed"), None)


def learning(model: Path, patch: pytest.MonkeyPatch) -> Begin:
    similar = SimilarAnswers(*[cast(Any, SimpleNamespace(doubt=fault, digest=""))] * 7, b"secret")
    return lambda: similar.disliked("acme", "resp_1")


def answers(model: Path, patch: pytest.MonkeyPatch) -> Begin:
    flights = Flights(cast(ResponseCache, None))
    return lambda: flights.land(cast(Any, SimpleNamespace(id="resp_1")), fault())


def turns(model: Path, patch: pytest.MonkeyPatch) -> Begin:
    patch.setattr(Turns, "_retain", lambda self, turn: 1 / 0)
    running = Turns(cast(Any, SimpleNamespace(run=fault)), TurnSettings(), context())
    request = TurnRequest(model="auto", messages=(Message("user", "hello"),))
    return lambda: asyncio.create_task(running.start(request, Principal("alice", "key")))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (replicas, "replicas"),
        (engine_connections, "engine connections"),
        (feeds, "feeds"),
        (follows, "follows"),
        (copies, "shadows"),
        (learning, "semantic cache"),
        (answers, "stored answers"),
        (turns, "turns"),
    ],
)
async def test_a_failure_is_counted_by_name(
    make: Callable[[Path, pytest.MonkeyPatch], Begin], name: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: asyncio.Queue[str] = asyncio.Queue()
    observe_failure.set(counted.put_nowait)
    begin = make(model, monkeypatch)
    others = asyncio.all_tasks()
    Context().run(begin)  # as a request that knows of no metrics
    async with asyncio.timeout(20):
        assert await counted.get() == name
    for task in asyncio.all_tasks() - others:
        task.cancel()
