"""What the ledger says is what was delivered: real gateways, a real Redis, an engine that counts what it sends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from tokenizers import Tokenizer
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from engine.wire import Generate, Output, Step, Usage, encode
from gateway.access.identity import Principal
from gateway.billing import report
from gateway.billing.entry import LedgerEntry
from gateway.billing.report import ReportQuery
from gateway.config.settings import PriceSettings, RouterSettings
from gateway.errors import ApiError
from gateway.protocol.requests import Message, Sampling, TurnRequest
from gateway.protocol.stream import Finished, TextDelta
from gateway.tools.answer import AnswerReader
from tests.gateway.billing.test_ledger import client
from tests.gateway.conftest import Serve, Served, eventually, receive, send
from tests.gateway.frame_engine import LOAD, FrameEngine
from tests.gateway.limits.use import used
from tests.gateway.turns.processes import GatewayProcess, gateways

pytestmark = pytest.mark.anyio

PRICE = PriceSettings(name="tiny-small", input=2_000_000, cached_input=1_000_000, output=5_000_000)
BUDGETS = {"spend_per_day": 10**12, "spend_per_month": 10**12}
"""Of the demo tenant, in micro-dollars."""
CACHED = 3
FAULT = "Z"
"""Text at which this gateway breaks."""


@dataclass
class Plan:
    """One turn: what its engine does, and what its client does."""

    tokens: int
    end: str
    """stop, length, error, death: how the engine ends after so many tokens; fault: the gateway breaks there."""
    cancel_after: int | None = None
    """Deltas after which the client cancels."""
    generate: bool = True
    repeat: bool = False
    """Ask the same again: it may be in the cache."""
    sent: int = 0
    """Tokens that the engine has sent."""


@dataclass
class Outcome:
    """What a client has seen of a turn."""

    plan: Plan
    id: str
    tokens: int = 0
    """In the deltas it was shown."""
    finished: Finished | None = None
    hit: bool = False


class PlannedEngine(FrameEngine):
    """Carries out plans; the output limit of a request says which one."""

    def __init__(self, path: Path, model: Path) -> None:
        super().__init__(path, {})
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.token, self.fault = (tokenizer.encode(text, add_special_tokens=False).ids[0] for text in ("x", FAULT))
        self.plans: dict[int, Plan] = {}

    async def _answer(self, connection: ServerConnection, request: Generate) -> None:
        plan = self.plans[request.sampling.max_tokens] if request.sampling.max_tokens > 1 else Plan(1, "length")
        usage = Usage(len(request.prompt), CACHED, plan.tokens, 0.0)
        with contextlib.suppress(ConnectionClosed):
            for index in range(plan.tokens):
                last = index == plan.tokens - 1
                finish: Any = plan.end if last and plan.end in ("stop", "length") else None
                token = self.fault if last and plan.end == "fault" else self.token
                output = Output(request.id, [token], finish=finish, usage=usage if index == 0 or last else None)
                await connection.send(encode(Step([output], LOAD)))
                plan.sent += 1
                await asyncio.sleep(0)
            if plan.end == "error":
                failed = Output(request.id, finish="error", error="broken", error_kind="internal", usage=usage)
                await connection.send(encode(Step([failed], LOAD)))
            elif plan.end == "death":
                await connection.close()


async def ask(served: Served, index: int, plan: Plan) -> list[Outcome]:
    """Ask what the plan says; one outcome per turn that was not refused."""
    request = TurnRequest(
        model="auto",
        messages=(Message("user", f"number {index}"),),
        sampling=Sampling(temperature=0),
        max_output_tokens=100 + index,
        generate=plan.generate,
    )
    outcomes = []
    for _ in range(1 + plan.repeat):
        try:
            viewer = await served.gateway.turns.start(request, Principal("demo", "demo"))
        except ApiError:
            continue
        with viewer:
            turn = viewer.turn
            outcome = Outcome(plan, turn.id)
            outcomes.append(outcome)
            deltas = 0
            async for entry in viewer.entries():
                if isinstance(entry.event, TextDelta):
                    outcome.tokens += len(entry.event.token_ids)
                    deltas += 1
                    if plan.cancel_after is not None and deltas > plan.cancel_after:
                        turn.cancel()
                if isinstance(entry.event, Finished):
                    outcome.finished = entry.event
            outcome.hit = turn.log.routed is not None and turn.log.routed.cache == "hit"
            with turn.watch() as again:  # whoever comes back costs nothing
                assert [entry async for entry in again.entries()]
    return outcomes


plans = st.lists(
    st.builds(
        Plan,
        tokens=st.integers(1, 40),
        end=st.sampled_from(["stop", "length", "error", "death", "fault"]),
        cancel_after=st.none() | st.integers(0, 10),
        generate=st.sampled_from([True, True, True, False]),
        repeat=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans, st.booleans())
async def test_the_ledger_is_what_was_delivered(
    serve: Serve, redis_url: str, model: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Plan], together: bool
) -> None:
    """However turns end: of themselves, cut short, cancelled, by a dying engine or a fault of the gateway.

    Budgets of spend are charged the same, and nothing stays held.
    """
    read = AnswerReader.read

    def breaking(reader: AnswerReader, text: str, *rest: Any) -> Any:
        if FAULT in text:
            raise RuntimeError("a fault of ours")
        return read(reader, text, *rest)

    monkeypatch.setattr(AnswerReader, "read", breaking)
    async with client(redis_url) as redis:
        with tempfile.TemporaryDirectory(prefix="rh-") as folder:
            engine = PlannedEngine(Path(folder, "e.sock"), model)
            engine.plans = {100 + index: plan for index, plan in enumerate(asked)}
            async with (
                engine.serving(),
                serve(
                    engines={"small": [engine.address]},
                    prices=[PRICE],
                    limits=BUDGETS,
                    router=RouterSettings(breaker_failures=1000),
                ) as served,
            ):
                if together:
                    every = await asyncio.gather(*(ask(served, index, plan) for index, plan in enumerate(asked)))
                else:
                    every = []
                    for index, plan in enumerate(asked):
                        away = served.gateway.engines["small-0"].client
                        await eventually(lambda away=away: away.connected)
                        every.append(await ask(served, index, plan))
                await served.settle()
                spent = await used(served)
        entries = {entry.turn: entry async for entry in report.turns(redis, _always())}
        assert [problem async for day in report.verify(redis, _always()) for problem in day.problems] == []
    outcomes = [outcome for some in every for outcome in some]
    assert outcomes, "nothing was admitted"
    assert entries.keys() == {outcome.id for outcome in outcomes}
    for outcome in outcomes:
        _check(outcome, entries[outcome.id])
    costs = sum(outcome.finished.cost or 0 for outcome in outcomes if outcome.finished)
    assert (spent["spend_per_day"], spent["spend_per_month"]) == (costs, costs)


def _check(outcome: Outcome, entry: LedgerEntry) -> None:
    finished, plan = outcome.finished, outcome.plan
    assert finished is not None
    told = finished.usage
    assert (entry.input, entry.cached, entry.output) == (told.input_tokens, told.cached_tokens, told.output_tokens)
    names = {"stop": "completed", "length": "incomplete", "cancelled": "cancelled", "error": "failed"}
    assert entry.outcome == names[finished.reason]
    if outcome.hit:
        assert (entry.cache, entry.picodollars, finished.cost) == ("hit", 0, 0)
        return
    # The token that ended an answer is counted and not shown.
    assert entry.output == outcome.tokens + (finished.reason == "stop" and plan.generate)
    if finished.reason in ("stop", "length") and plan.generate and not plan.repeat:
        assert entry.output == plan.sent
    exact = (entry.input - entry.cached) * 2_000_000 + entry.cached * 1_000_000 + entry.output * 5_000_000
    assert entry.picodollars == exact
    assert finished.cost == -(-exact // 1_000_000)


async def test_a_killed_gateway_loses_no_turn_that_had_ended(model: Path, redis_url: str) -> None:
    """The next one enters them, and what was delivered of the running ones as it was at the last checkpoint."""
    async with client(redis_url) as redis, gateways(1, model, redis_url, pause=0.01) as ((process,), _):
        async with process.connect() as socket:
            ended: dict[str, int] = {}
            running = ""
            await send(socket, type="response.create", stream_id="long", input="count", store=False)
            shown = 0
            while shown < 80:  # longer than between two checkpoints
                event = await receive(socket)
                shown += event["type"] == "response.output_text.delta"
                running = event.get("response", {}).get("id") or running
            for lane in ("a", "b", "c"):
                await send(socket, type="response.create", stream_id=lane, input="count", max_output_tokens=3)
            while len(ended) < 3:
                event = await receive(socket)
                if event["type"] == "response.completed" and event["stream_id"] != "long":
                    ended[event["response"]["id"]] = event["response"]["usage"]["output_tokens"]
                shown += event["type"] == "response.output_text.delta" and event.get("stream_id") == "long"
            await process.stop(signal.SIGKILL)
        await _restart(process)
        await _until_entered(redis, 4)
        entries = {entry.turn: entry async for entry in report.turns(redis, _always())}
        assert {turn: entries[turn].output for turn in ended} == ended
        lost = entries[running]
        assert (lost.outcome, lost.model, lost.key) == ("lost", "numbers", "demo")
        assert lost.output > 0
        assert [problem async for day in report.verify(redis, _always()) for problem in day.problems] == []
        await process.stop()
        assert await redis.xlen(f"rh1:usage:{{demo}}:{report.current_hour():%Y%m%d}") == 4


async def test_what_a_killed_gateway_has_left_is_entered_from_another_machine(
    model: Path, redis_url: str, tmp_path: Path
) -> None:
    """By a gateway with a data folder of its own, that shares the folder of journals; each turn once."""
    shared = f'[usage]\njournals = "{tmp_path}/journals"\n'
    never = {"ROUNDHOUSE_USAGE_FLUSH_INTERVAL": "3600"}
    async with (
        client(redis_url) as redis,
        gateways(2, model, redis_url, tables=shared, environments=[never]) as ((one, other), _),
    ):
        asked = {"model": "numbers", "input": "count", "max_output_tokens": 3}
        for process in (one, other, one):
            assert (await process.call("/v1/responses", asked))[0] == 200
        await _until_entered(redis, 1)
        assert len(list((tmp_path / "journals").glob("*.lock"))) == 2
        await one.stop(signal.SIGKILL)
        await _until_entered(redis, 3)
        await _restart(one)
        entries = [entry async for entry in report.turns(redis, _always())]
        assert [(entry.outcome, entry.output) for entry in entries] == [("completed", 3)] * 3
        assert [problem async for day in report.verify(redis, _always()) for problem in day.problems] == []


async def _restart(process: GatewayProcess) -> None:
    await process.start()
    await process.ready()


async def _until_entered(redis: Redis, count: int) -> None:
    async with asyncio.timeout(90):
        while len([entry async for entry in report.turns(redis, _always())]) < count:  # noqa: ASYNC110  another process writes it
            await asyncio.sleep(0.05)


def _always() -> ReportQuery:
    now = report.current_hour()
    return ReportQuery(since=now - timedelta(days=2), until=now + timedelta(days=2))
