"""A tier of several pools behind a gateway: who answers, who stands in, and what of it is shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from gateway.config.settings import CacheSettings, PoolSettings
from gateway.pipeline.routing.choice import Routing
from gateway.protocol.requests import Message, Sampling
from gateway.protocol.stream import Routed
from tests.gateway.conftest import EngineThread, Serve, Served
from tests.gateway.pipeline.turns import request, routes, run, stopping, text

pytestmark = pytest.mark.anyio

NO_CACHE = CacheSettings(enabled=False)


@pytest.fixture(scope="module")
def other(model: Path) -> Iterator[EngineThread]:
    with EngineThread(model) as engine:
        yield engine


@pytest.fixture
def pools(model: Path, engine: EngineThread, other: EngineThread) -> list[PoolSettings]:
    first = PoolSettings(tier="large", name="first", model=str(model), engines=[engine.address])
    return [first, msgspec.structs.replace(first, name="second", engines=[other.address], weight=3)]


async def ask(served: Served, text: str, model: str = "large") -> Routed:
    [route] = routes(await run(served, request(text, model=model)))
    return route


async def test_conversations_are_shared_by_weight_and_keep_to_their_pool(
    serve: Serve, pools: list[PoolSettings]
) -> None:
    async with serve(pools=pools, cache=NO_CACHE) as served:
        answered = {}
        for number in range(16):
            said = [Message("user", f"question {number}")]
            first = await run(served, request(model="large", messages=tuple(said)))
            said += [Message("assistant", text(first)), Message("user", "and then?")]
            second = await run(served, request(model="large", messages=tuple(said)))
            [before], [after] = routes(first), routes(second)
            assert (before.model, before.tier, before.reason) == (after.model, "large", "requested")
            assert f"this conversation goes to {before.model}" in before.reasons[-1]
            answered[before.model] = answered.get(before.model, 0) + 1
        assert answered["second"] > answered["first"] > 0
        await served.settle()


async def test_the_next_pool_stands_in_and_its_answer_is_not_kept_for_the_other(
    serve: Serve, pools: list[PoolSettings]
) -> None:
    only_second = [msgspec.structs.replace(pools[0], weight=0), pools[1]]
    async with serve(pools=only_second) as served:
        asked = await stopping(served, model="large", sampling=Sampling(temperature=0))
        second = served.gateway.engines.pools[1].engines[0].client
        await second.aclose()
        [instead] = routes(await run(served, asked))
        assert (instead.model, instead.tier, instead.reason) == ("first", "large", "fallback")
        assert "second is not available, first stands in" in instead.reasons
        await second.start()
        await second.wait_connected()
        served.gateway.engines.pools[1].engines[0].breaker.succeeded()
        [route] = routes(await run(served, asked))
        assert (route.model, route.cache) == ("second", "miss")
        [stored] = routes(await run(served, asked))
        assert (stored.model, stored.replica) == ("second", "cache")
        # Under its own name the first model answers itself.
        [own] = routes(await run(served, msgspec.structs.replace(asked, model="first")))
        assert (own.model, own.cache) == ("first", "miss")
        await served.settle()


async def test_a_model_that_comes_after_the_prompts_were_written_answers_the_next_turn(
    serve: Serve, pools: list[PoolSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    pools[1] = msgspec.structs.replace(pools[1], tier="medium")
    async with serve(pools=pools, cache=NO_CACHE) as served:
        [coming] = [pool for pool in served.gateway.engines.pools if pool.name == "second"]
        served.gateway.engines.pools.remove(coming)
        assess = Routing.assess

        async def arriving(*asked: Any) -> Any:
            assessment = await assess(*asked)
            served.gateway.engines.pools.append(coming)
            return assessment

        with monkeypatch.context() as patch:
            patch.setattr(Routing, "assess", arriving)
            routed = await ask(served, "hello", "medium")
            assert (routed.model, routed.reasons[-1]) == (
                "first",
                "the medium tier is starting, the large tier stands in",
            )
        assert (await ask(served, "hello", "medium")).model == "second"
        await served.settle()


async def test_which_pool_answered_shows_in_lists_and_metrics(serve: Serve, pools: list[PoolSettings]) -> None:
    async with serve(pools=pools, cache=NO_CACHE) as served:
        models = {model.id: model.to_dict() async for model in await served.client.models.list()}
        assert [name for name in models if models[name]["tier"] == "large"] == ["large", "first", "second"]
        name = (await ask(served, "hello")).model
        async with httpx2.AsyncClient(base_url=served.url) as http:
            metrics = (await http.get("/metrics")).text
        assert f'roundhouse_route_decisions_total{{model="{name}",reason="requested",tier="large"}} 1.0' in metrics
        await served.settle()
