"""Pools whose servers take messages, where nobody waits for an answer: copies of turns, and pairs for a judge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from gateway.config.settings import PoolSettings, RouterSettings
from gateway.pipeline.routing.calibration import RELEASED, read_model
from gateway.pipeline.routing.decisions import read
from gateway.pipeline.routing.judge import ACCOUNT
from gateway.protocol.requests import Sampling
from tests.gateway.conftest import EngineThread, Serve
from tests.gateway.pipeline.routing.learnt import learnt_from
from tests.gateway.pipeline.routing.test_judge import Voices, billed, counted, judged, judging
from tests.gateway.pipeline.routing.test_judge import voices as voices
from tests.gateway.pipeline.routing.test_shadows import NO_CACHE, compared, make_route
from tests.gateway.pipeline.routing.test_tiers import EXAM
from tests.gateway.pipeline.turns import request, routes, run, stopping, text
from tests.gateway.upstreams.message_doubles import Ollama
from tests.gateway.upstreams.subjects import Subject, of_message_double

pytestmark = pytest.mark.anyio


def pool_of(tier: str, server: Subject) -> PoolSettings:
    return PoolSettings(
        tier=tier,  # type: ignore[arg-type]
        name=f"tiny-{tier}",
        model=server.model,
        dialect="ollama",
        context=server.context,
        engines=[server.address],
    )


@pytest.fixture
async def pools(engine: EngineThread, model: Path) -> AsyncIterator[list[PoolSettings]]:
    """A small pool of ours, and a medium one that takes messages and answers with the same engine."""
    async with of_message_double(Ollama, engine.address, model) as server:
        own = PoolSettings(tier="small", name="tiny-small", model=str(model), engines=[engine.address])
        yield [own, pool_of("medium", server)]


async def test_a_server_that_takes_messages_is_tried_unseen(serve: Serve, pools: list[PoolSettings]) -> None:
    async with serve(pools=pools, cache=NO_CACHE) as served:
        route = await make_route(served)
        asked = await stopping(served, model="tiny-small")
        (shown,) = routes(await run(served, msgspec.structs.replace(asked, model="assistant")))
        found = await compared(served, route)
        assert shown.tier == "small"
        assert (found.copies, found.compared, found.agreed, found.errors) == (1, 1, 1, 0)
        assert found.first_ms is not None
        await served.settle()


async def test_what_it_cannot_be_asked_is_an_error_of_the_copy_only(serve: Serve, pools: list[PoolSettings]) -> None:
    async with serve(pools=pools, cache=NO_CACHE) as served:
        route = await make_route(served)
        answered = await run(served, request(model="assistant", sampling=Sampling(stop_token_ids=(5,))))
        assert text(answered)
        found = await compared(served, route)
        assert (found.copies, found.compared, found.errors, found.stable_errors) == (1, 0, 1, 0)
        await served.settle()


async def test_stand_ins_that_cannot_be_asked_change_nothing_of_what_answers_are_expected_to_cost(
    serve: Serve, engine: EngineThread, model: Path, tmp_path: Path
) -> None:
    own = [
        PoolSettings(tier="small", name="tiny-small", model=str(model), engines=[engine.address]),
        PoolSettings(tier="large", name="tiny-large", model=str(model), engines=[engine.address]),
    ]
    router = RouterSettings(model=learnt_from(tmp_path, like=read_model(str(RELEASED))))
    async with of_message_double(Ollama, engine.address, model) as server:
        others = [pool_of(tier, server) for tier in ("small", "large")]
        stand_ins = [msgspec.structs.replace(pool, name=f"other-{pool.tier}", weight=0) for pool in others]
        for pools in (own, [*own, *stand_ins]):
            async with serve(pools=pools, router=router, cache=NO_CACHE) as served:
                await run(served, request("Is 91 a prime number?", sampling=Sampling(stop_token_ids=(5,))))
                await served.gateway.decisions.flush()
                logged = await read(served.gateway.redis, "demo", 10)
                await served.settle()
    beside, alone = (decision.choice.outlook.costs for decision in logged)
    assert alone is not None and beside == alone


async def test_a_judge_compares_answers_of_servers_that_take_messages(
    serve: Serve, voices: Voices, model: Path, tmp_path: Path
) -> None:
    """The account of the judge pays what the servers count."""
    async with AsyncExitStack() as stack:
        pools = [
            PoolSettings(tier="large", name="tiny-large", model=str(model), engines=[voices["large"].engine.address])
        ]
        for tier in ("small", "medium"):
            server = of_message_double(Ollama, voices[tier].engine.address, model)
            pools.append(pool_of(tier, await stack.enter_async_context(server)))
        served = await stack.enter_async_context(judging(serve, voices, tmp_path, pools=pools))
        events = await run(served, request(EXAM, sampling=Sampling(), max_output_tokens=None))
        (found,) = await judged(served)
        assert counted(served) == {"preferred": 1}
        assert text(events) == f"The {routes(events)[-1].tier} answer."
        assert {*found.tiers} & {"small", "medium"}
        assert voices["large"].verdicts == 2
        entries = await billed(served)
        assert sorted(each.tenant for each in entries) == sorted(["demo", *[ACCOUNT] * 3])
        for tier in {*found.tiers} & {"small", "medium"}:
            (spent,) = [each for each in entries if each.model == f"tiny-{tier}"]
            (sent,) = voices[tier].engine.generated
            assert spent.input == len(sent.prompt)
