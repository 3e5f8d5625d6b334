"""Routes in front of real models: conversations are shared, and a canary that fails is taken out."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from gateway.access.identity import Principal
from gateway.errors import ApiError, ModelNotFound, NotCached, Unavailable
from gateway.pipeline.routing.canaries import ACTOR, KEY, read
from gateway.protocol.caching import Caching
from gateway.protocol.requests import Message, Sampling
from gateway.records.directory import Route, Target, Tenant
from router.canary import CanarySignal
from tests.gateway.conftest import EngineThread, Serve, Served, eventually
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.pipeline.turns import request, routes, run, text

pytestmark = pytest.mark.anyio

HALF = [Target(model="tiny-small", weight=1), Target(model="tiny-medium", weight=1)]


async def make_route(served: Served, **fields: Any) -> Route:
    route = await served.gateway.directory.write(
        Route(**{"name": "assistant", "targets": HALF, **fields}), actor="test", expected=0
    )
    await served.gateway.view.refresh()
    return route


async def answered(served: Served, number: int, *more: Message) -> tuple[str, str]:
    """Tier and answer of a conversation's turn."""
    said = (Message("user", f"Question {number}?"), *more)
    events = await run(served, request(model="assistant", messages=said))
    return routes(events)[-1].tier, text(events)


async def test_a_route_shares_its_conversations(serve: Serve, engine: EngineThread) -> None:
    """Each stays where it began; without weight nothing goes to a target; a disabled route is no name."""
    async with serve(engines={"small": [engine.address], "medium": [engine.address]}) as served:
        route = await make_route(served)
        homes = {}
        for number in range(24):
            homes[number], answer = await answered(served, number)
            again, _ = await answered(served, number, Message("assistant", answer), Message("user", "Why?"))
            assert again == homes[number]
        told = routes(await run(served, request(model="assistant")))[0]
        assert f"the name assistant leads this conversation to {told.model}" in told.reasons
        assert min(Counter(homes.values())[tier] for tier in ("small", "medium")) >= 4
        one = [Target(model="tiny-small", weight=0), Target(model="tiny-medium", weight=3)]
        changed = await served.gateway.directory.write(
            Route(name="assistant", targets=one), actor="test", expected=route.revision
        )
        await served.gateway.view.refresh()
        assert {(await answered(served, number))[0] for number in range(8)} == {"medium"}
        await served.gateway.directory.write(
            Route(name="assistant", targets=one, disabled=True), actor="test", expected=changed.revision
        )
        await served.gateway.view.refresh()
        with pytest.raises(ModelNotFound, match="'assistant' does not exist"):
            await answered(served, 1)
        await served.settle()


async def test_a_route_does_not_exist_for_who_may_not_use_all_of_it(serve: Serve, engine: EngineThread) -> None:
    """And its targets are not named."""
    async with serve(engines={"small": [engine.address], "medium": [engine.address]}) as served:
        await make_route(served)
        tenant = Tenant(name="narrow", models=["assistant", "tiny-small"])
        await served.gateway.directory.write(tenant, actor="test", expected=0)
        await served.gateway.view.refresh()
        with pytest.raises(ModelNotFound) as refused:
            await run(served, request(model="assistant"), Principal("narrow", "narrow"))
        assert "tiny-medium" not in str(refused.value)


async def test_nothing_is_cached_while_models_are_compared(serve: Serve, engine: EngineThread) -> None:
    """Of neither: what comes from a cache cannot fail. Without a trial the cache works as ever."""
    async with serve(engines={"small": [engine.address], "medium": [engine.address]}) as served:
        route = await make_route(served)
        asked = request(model="assistant", sampling=Sampling(temperature=0))
        for _ in range(2):
            found = routes(await run(served, asked))[0]
            assert (found.cache, found.cache_reason) == ("bypass", "trial")
        alone = [Target(model="tiny-small", weight=1)]
        await served.gateway.directory.write(
            Route(name="assistant", targets=alone), actor="test", expected=route.revision
        )
        await served.gateway.view.refresh()
        assert routes(await run(served, asked))[0].cache == "miss"


async def test_a_model_is_not_to_blame_for_an_answer_that_is_not_stored(serve: Serve, engine: EngineThread) -> None:
    """A request for a stored answer or none finds none while models are compared, and that counts against neither."""
    async with serve(engines={"small": [engine.address], "medium": [engine.address]}) as served:
        route = await make_route(served)
        for number in range(8):
            with pytest.raises(NotCached):
                said = (Message("user", f"Question {number}?"),)
                await run(served, request(model="assistant", messages=said, caching=Caching(only_if_cached=True)))
            await answered(served, number)
        await served.gateway.canaries.flush()
        (standing,) = (await read(served.gateway.redis, route)).standings
        failures = standing.failures[CanarySignal.ERROR]
        assert (standing.turns + standing.stable_turns, failures.canary + failures.stable) == (8, 0)


async def test_a_canary_that_fails_is_taken_out(serve: Serve, engine: EngineThread, tmp_path: Path) -> None:
    """By the gateway itself, with an entry in the audit log; from then on all conversations are answered."""
    broken = FrameEngine(tmp_path / "broken", {None: 5})
    broken.failing = True
    async with broken.serving(), serve(engines={"small": [engine.address], "medium": [broken.address]}) as served:
        route = await make_route(served)
        failed = 0
        for number in range(200):
            try:
                await answered(served, number)
            except ApiError as error:
                assert error.status >= 500
                failed += 1
            if served.gateway.view.route("assistant") != route:
                break
            if failed > 12:
                await asyncio.sleep(0.05)  # what was counted is looked at every second
        await eventually(lambda: served.gateway.view.route("assistant") != route)
        after = served.gateway.view.route("assistant")
        assert after is not None
        assert [(target.model, target.weight) for target in after.targets] == [("tiny-small", 1), ("tiny-medium", 0)]
        head = await served.gateway.directory.audit.head()
        entry = (await served.gateway.directory.audit.read(head.sequence - 1, 1))[0].read()
        assert (entry.actor, entry.subject) == (ACTOR, "assistant")
        assert {(await answered(served, number))[0] for number in range(10)} == {"small"}
        (standing,) = (await read(served.gateway.redis, route)).standings
        assert standing.verdict.out and standing.verdict.signal is CanarySignal.ERROR
        assert standing.failures[CanarySignal.ERROR].stable == 0 and standing.failures[CanarySignal.ERROR].canary >= 5
        while (now := (await read(served.gateway.redis, after)).standings[0]).taken_out is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # it is told once this gateway asks the canary no more
        assert not now.verdict.out and now.weight == 0
        # What decided stays to be seen, though a changed route begins anew.
        assert now.taken_out.signal is CanarySignal.ERROR
        assert now.taken_out.failures.canary >= 5 and now.taken_out.evidence >= now.verdict.threshold


async def test_a_target_that_is_gone_is_a_canary_that_fails(serve: Serve, engine: EngineThread) -> None:
    """Its clients are not told that the name they asked for does not exist."""
    async with serve(engines={"small": [engine.address]}) as served:
        route = await make_route(served, targets=[HALF[0], Target(model="gone", weight=1)])
        await served.gateway.view.aclose()  # who takes it out asks it no more without being told by others
        failed = 0
        for number in range(40):
            try:
                await answered(served, number)
            except Unavailable as error:
                assert "gone" not in str(error)
                failed += 1
        assert failed >= 5
        await served.gateway.canaries.flush()
        await eventually(lambda: served.gateway.view.route("assistant") != route)
        after = served.gateway.view.route("assistant")
        assert after is not None
        assert [target.weight for target in after.targets] == [1, 0]


async def test_routes_are_listed_as_models(serve: Serve, engine: EngineThread) -> None:
    """One with a model's name takes its place; a disabled one is not there."""
    async with serve(engines={"small": [engine.address], "medium": [engine.address]}) as served:
        await make_route(served)
        await make_route(served, name="tiny-small", targets=HALF)
        await make_route(served, name="later", disabled=True)
        found = [model.id for model in (await served.client.models.list()).data]
        assert len(found) == len(set(found))
        assert {"assistant", "tiny-small"} < set(found) and "later" not in found
        assert (await served.client.models.retrieve("assistant")).id == "assistant"


async def test_one_conversation_counts_once(serve: Serve, engine: EngineThread, tmp_path: Path) -> None:
    """However often it is tried again."""
    broken = FrameEngine(tmp_path / "broken", {None: 5})
    broken.failing = True
    only = [Target(model="tiny-small", weight=1), Target(model="tiny-medium", weight=1000)]
    async with broken.serving(), serve(engines={"small": [engine.address], "medium": [broken.address]}) as served:
        route = await make_route(served, targets=only)
        for _ in range(10):
            with contextlib.suppress(ApiError):
                await answered(served, 1)
        await served.gateway.redis.ping()

        async def counted() -> bool:
            (standing,) = (await read(served.gateway.redis, route)).standings
            return standing.turns == 10 and standing.failures[CanarySignal.ERROR].canary == 1

        async with asyncio.timeout(20):
            while not await counted():  # noqa: ASYNC110 (nothing announces it)
                await asyncio.sleep(0.05)


async def test_without_redis_a_route_leads_where_it_did(serve: Serve, engine: EngineThread) -> None:
    """Nothing is counted; no turn fails for it."""
    async with serve(engines={"small": [engine.address], "medium": [engine.address]}) as served:
        await make_route(served)
        before = {number: (await answered(served, number))[0] for number in range(4)}
        dead = redis.asyncio.Redis.from_url("redis://127.0.0.1:1")
        canaries = served.gateway.canaries
        canaries._redis = dead
        assert {number: (await answered(served, number))[0] for number in range(4)} == before
        await canaries.flush()
        await dead.aclose()


def test_the_redis_key_is_documented() -> None:
    assert f"`{KEY.format(route='<route>', revision='<revision>')}`" in Path("docs/redis-keys.md").read_text("utf-8")
