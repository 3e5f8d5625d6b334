"""Copies of turns for a model that is tried: compared, unseen, unpaid, and given up where they would be in the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.wire import Cancel
from gateway.access.identity import Principal
from gateway.billing import report
from gateway.config.settings import CacheSettings, PriceSettings
from gateway.pipeline.routing.canaries import Canaries, read
from gateway.pipeline.routing.shadows import ACCOUNT, MOST, Comparison, copied
from gateway.protocol.requests import Message
from gateway.protocol.tools import Tool, ToolUse
from gateway.records.directory import Route, Shadow, Target, Tenant
from tests.gateway.conftest import EngineThread, Serve, Served, eventually
from tests.gateway.frame_engine import LOAD, FrameEngine
from tests.gateway.limits.use import STILL, used
from tests.gateway.pipeline.turns import request, run, stopping, text

pytestmark = pytest.mark.anyio

NO_CACHE = CacheSettings(enabled=False)
BUSY = msgspec.structs.replace(LOAD, predicted_queue_seconds=3.0)


@pytest.fixture
async def frames(tmp_path: Path) -> AsyncIterator[FrameEngine]:
    """Behind the model that is tried."""
    async with FrameEngine(tmp_path / "medium.sock", {None: 300}).serving() as engine:
        yield engine


def canaries(served: Served) -> Canaries:
    return served.gateway.canaries


async def make_route(served: Served) -> Route:
    """From `assistant` to the small model, of which all is copied to the medium one."""
    route = Route(
        name="assistant",
        targets=[Target(model="tiny-small", weight=1)],
        shadow=Shadow(model="tiny-medium", percent=100),
    )
    stored = await served.gateway.directory.write(route, actor="test", expected=0)
    await served.gateway.view.refresh()
    return stored


async def compared(served: Served, route: Route) -> Comparison:
    """When all copies have ended."""
    shadows = canaries(served)._shadows
    await eventually(lambda: shadows.running == 0)
    await canaries(served).flush()
    found = (await read(served.gateway.redis, route)).shadow
    assert found is not None
    return found


async def test_a_copy_is_compared_and_nobody_pays_for_it(serve: Serve, engine: EngineThread) -> None:
    """The same model agrees with itself; limits and ledger know of one turn."""
    prices = [PriceSettings(name=name, input=1_000_000, output=1_000_000) for name in ("tiny-small", "tiny-medium")]
    both = {"small": [engine.address], "medium": [engine.address]}
    async with serve(engines=both, cache=NO_CACHE, prices=prices, limits=STILL) as served:
        route = await make_route(served)
        asked = await stopping(served, model="tiny-small")
        await served.settle()
        before = await used(served)
        events = await run(served, msgspec.structs.replace(asked, model="assistant"))
        found = await compared(served, route)
        assert (found.copies, found.compared, found.agreed, found.errors, found.given_up) == (1, 1, 1, 0, 0)
        assert found.first_ms is not None and found.stable_first_ms is not None
        await served.settle()
        spent = await used(served) - before
        assert spent["output_tokens_per_minute"] == events[-1].usage.output_tokens
        await served.gateway.ledger.flush()
        now = report.current_hour()
        always = report.ReportQuery(since=now - timedelta(days=1), until=now + timedelta(days=1))
        billed = Counter([entry.model async for entry in report.turns(served.gateway.redis, always)])
        assert billed == {"tiny-small": 2}  # `stopping` has asked once


async def test_other_answers_disagree(serve: Serve, engine: EngineThread, frames: FrameEngine) -> None:
    """The copy asks what the turn asked, on an account of its own, below all others."""
    frames.finish = "stop"
    async with serve(engines={"small": [engine.address], "medium": [frames.address]}, cache=NO_CACHE) as served:
        route = await make_route(served)
        asked = await stopping(served, model="tiny-small")
        frames.tokens[None] = served.gateway.engines.pools[0].text.encode("x")[-1]  # no space, which would be nothing
        assert text(await run(served, msgspec.structs.replace(asked, model="assistant")))
        found = await compared(served, route)
        assert (found.copies, found.compared, found.agreed) == (1, 1, 0)
        (copy,) = frames.generated
        assert (copy.tenant, copy.service, copy.sampling.temperature) == (ACCOUNT, "batch", 0)
        assert served.gateway.engines.pools[0].text.encode_chat([{"role": "user", "content": "hello"}]) == copy.prompt


async def test_a_model_that_fails_fails_in_its_copies_only(
    serve: Serve, engine: EngineThread, frames: FrameEngine
) -> None:
    frames.failing = True
    async with serve(engines={"small": [engine.address], "medium": [frames.address]}, cache=NO_CACHE) as served:
        route = await make_route(served)
        for number in range(12):
            assert (await run(served, request(f"Question {number}?", model="assistant")))[-1].reason == "length"
            await eventually(lambda: canaries(served)._shadows.running == 0)
        found = await compared(served, route)
        assert (found.copies, found.errors, found.stable_errors) == (12, 12, 0)
        assert found.evidence > 300
        # Nor is the engine left alone for it: users' own turns would be, if it served some.
        assert served.gateway.engines["medium-0"].errors.rate(0.0) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": ToolUse(tools=(Tool(name="pay"),), allowed=("pay",))},
        {"messages": (Message("user", "Pay."), Message("tool", "Paid."), Message("user", "Thanks."))},
        {"generate": False},
    ],
    ids=["tools", "results", "warm-up"],
)
async def test_what_must_not_be_done_twice_is_not_copied(
    serve: Serve, engine: EngineThread, frames: FrameEngine, fields: dict[str, Any]
) -> None:
    async with serve(engines={"small": [engine.address], "medium": [frames.address]}, cache=NO_CACHE) as served:
        route = await make_route(served)
        await run(served, request(**{"model": "assistant", **fields}))
        assert (await compared(served, route)).copies == 0
        assert not frames.generated


async def test_copies_are_given_up_under_load(serve: Serve, engine: EngineThread, frames: FrameEngine) -> None:
    """Those that run as soon as others would have to wait, and no others begin."""
    async with serve(engines={"small": [engine.address], "medium": [frames.address]}, cache=NO_CACHE) as served:
        route = await make_route(served)
        frames.gate.clear()
        await run(served, request(model="assistant", max_output_tokens=400))
        await eventually(lambda: len(frames.generated) == 1)
        frames.load = BUSY
        frames.gate.set()
        await eventually(lambda: any(isinstance(frame, Cancel) for frame in frames.frames))
        await run(served, request("again", model="assistant"))
        found = await compared(served, route)
        assert (found.copies, found.given_up) == (0, 2)
        assert len(frames.generated) == 1


async def test_copies_are_few_at_a_time(serve: Serve, engine: EngineThread, frames: FrameEngine) -> None:
    """And end with the gateway, which waits for none."""
    async with serve(engines={"small": [engine.address], "medium": [frames.address]}, cache=NO_CACHE) as served:
        await make_route(served)
        frames.gate.clear()
        for number in range(MOST + 3):
            await run(served, request(f"Question {number}?", model="assistant"))
        await eventually(lambda: len(frames.generated) == MOST)
        shadows = canaries(served)._shadows
        assert shadows.running == MOST
    assert shadows.running == 0


async def test_a_tenant_without_the_model_is_not_copied(
    serve: Serve, engine: EngineThread, frames: FrameEngine
) -> None:
    """What it sends reaches no model that it may not use."""
    async with serve(engines={"small": [engine.address], "medium": [frames.address]}, cache=NO_CACHE) as served:
        route = await make_route(served)
        tenant = Tenant(name="narrow", models=["assistant", "tiny-small"])
        await served.gateway.directory.write(tenant, actor="test", expected=0)
        await served.gateway.view.refresh()
        await run(served, request(model="assistant"), Principal("narrow", "narrow"))
        assert (await compared(served, route)).copies == 0


def test_whole_conversations_are_copied() -> None:
    """About as many as the route says, whatever target they go to; more when it says more."""
    route = Route(name="assistant", targets=[Target(model="a", weight=1)], shadow=Shadow(model="b", percent=10))
    more = msgspec.structs.replace(route, shadow=Shadow(model="b", percent=30))
    conversations = [b"%d" % number for number in range(5000)]
    some = {each for each in conversations if copied(route, "acme", each)}
    assert 400 < len(some) < 600
    assert some < {each for each in conversations if copied(more, "acme", each)}
