"""Whole runs against a server whose answers, and faults, are known."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from load.connections.address import Address
from load.objectives import Objectives
from load.plan import Protocol, TrafficPlan
from load.records import MeasuredTurn, TurnEnd
from load.run import OpenLoop
from load.session import LoadSession, LoadTarget, Schedule, Unmeasurable, look
from load.statistics import LoadRun
from load.traces import TracePoint
from tests.load.answering import KEYS, PIECES, AnsweringServer

pytestmark = pytest.mark.anyio
TENANTS = {f"t{number}": {"Authorization": f"Bearer {key}"} for number, key in enumerate(KEYS)}
EVERY = (("chat", 1.0), ("responses", 1.0), ("responses-http", 1.0))


def session(url: str, model: str = "good", watch: Any = None, **fields: Any) -> LoadSession:
    limits = {name: fields.pop(name) for name in ("sockets", "limit") if name in fields}
    schedule = Schedule(arrivals="constant", duration=1.5, requests=fields.pop("requests", 30))
    bounds, trace = fields.pop("objectives", Objectives()), fields.pop("trace", ())
    common = {"models": ((model, 1.0),), "protocols": EVERY, "tenants": tuple(TENANTS)}
    target = LoadTarget(Address.parse(url), TENANTS, KEYS, **limits)
    return LoadSession(target, TrafficPlan(**(common | fields)), schedule, bounds, trace, watch)


async def measured(url: str, model: str = "good", **fields: Any) -> tuple[LoadRun, list[MeasuredTurn]]:
    return await session(url, model, **fields).measure(200.0)


async def test_every_turn_ends_over_every_protocol_and_for_every_tenant(answering: tuple[AnsweringServer, str]) -> None:
    server, url = answering
    run, turns = await measured(url)
    assert {(each.end, each.fault, each.error) for each in turns} == {(TurnEnd.COMPLETED, None, None)}
    assert {each.plan.protocol for each in turns} == {"chat", "responses", "responses-http"}
    assert set(server.keys) == set(KEYS)
    assert {each.tokens for each in turns} == {PIECES}
    assert {len(each.gaps) for each in turns} == {PIECES - 1}
    assert run.summary.verdict.met and run.summary.turns == 30


@pytest.mark.parametrize("protocol", ["responses", "responses-http"])
async def test_a_turn_that_is_cut_off_goes_on_where_it_was(
    answering: tuple[AnsweringServer, str], protocol: Protocol
) -> None:
    run, turns = await measured(answering[1], "patient", protocols=((protocol, 1.0),), dropped=1.0)
    assert {(each.end, each.fault) for each in turns} == {(TurnEnd.COMPLETED, None)}
    assert all(each.resumed is not None and len(each.gaps) == PIECES - 2 for each in turns)
    assert run.summary.resumed is not None and run.summary.verdict.met


@pytest.mark.parametrize("protocol", ["chat", "responses", "responses-http"])
async def test_a_turn_that_is_cancelled_ends(answering: tuple[AnsweringServer, str], protocol: Protocol) -> None:
    run, turns = await measured(answering[1], "patient", protocols=((protocol, 1.0),), cancelled=1.0)
    assert {(each.end, each.fault) for each in turns} == {(TurnEnd.CANCELLED, None)}
    assert all(each.stopped is not None and each.pieces < PIECES for each in turns)
    assert run.summary.verdict.met


@pytest.mark.parametrize("model", ["loses", "doubles", "skips"])
@pytest.mark.parametrize("protocol", ["responses", "responses-http"])
async def test_a_text_that_is_wrong_after_a_resume_is_a_fault(
    answering: tuple[AnsweringServer, str], protocol: Protocol, model: str
) -> None:
    run, turns = await measured(answering[1], model, protocols=((protocol, 1.0),), dropped=1.0, requests=5)
    assert {each.end for each in turns} == {TurnEnd.COMPLETED}
    assert all(each.fault is not None for each in turns)
    assert run.summary.verdict.reasons[-1] == "5 turns have a wrong text"


async def test_texts_that_differ_under_the_same_seed_are_a_fault(answering: tuple[AnsweringServer, str]) -> None:
    _, turns = await measured(answering[1], repeated=0.5)
    assert {each.fault for each in turns} == {None}
    run, turns = await measured(answering[1], "unequal", repeated=0.5)
    assert [each.fault is not None for each in turns] == [each.plan.repeats is not None for each in turns]
    assert not run.summary.verdict.met


@pytest.mark.parametrize(
    ("model", "protocol", "end", "error"),
    [
        ("fails", "responses", TurnEnd.FAILED, "engine_lost: the engine is gone"),
        ("fails", "responses-http", TurnEnd.FAILED, "engine_lost: the engine is gone"),
        ("ends-early", "responses-http", TurnEnd.LOST, "the answer ended without its last event"),
        ("ends-early", "responses", TurnEnd.TIMED_OUT, "no end after 0.5 s"),
        ("refused", "chat", TurnEnd.REFUSED, "404 model_not_found: Bearer *** may not use it"),
    ],
)
async def test_what_goes_wrong_is_told_without_keys(
    answering: tuple[AnsweringServer, str], model: str, protocol: Protocol, end: TurnEnd, error: str
) -> None:
    limit = 0.5 if end is TurnEnd.TIMED_OUT else 60.0
    run, turns = await measured(answering[1], model, protocols=((protocol, 1.0),), requests=3, limit=limit)
    assert {(each.end, each.error) for each in turns} == {(end, error)}
    assert run.summary.errors == {error: 3} and not run.summary.verdict.met


async def test_a_chat_completion_without_its_end_is_a_fault(answering: tuple[AnsweringServer, str]) -> None:
    _, turns = await measured(answering[1], "ends-early", protocols=(("chat", 1.0),), requests=2)
    assert {each.fault for each in turns} == {"the stream ended without a finish_reason"}


async def test_waiting_for_a_socket_counts(answering: tuple[AnsweringServer, str]) -> None:
    """One socket, answers of `PIECES` pauses, all due at once: each waits for all before it."""
    server, url = answering
    trace = [TracePoint(0.0, 5, 5) for _ in range(4)]
    _, turns = await session(url, protocols=(("responses", 1.0),), tenants=("t0",), sockets=1, trace=trace).measure(
        None
    )
    assert server.most_open == 1
    by_end = sorted(turns, key=lambda each: each.ended)
    for earlier, later in pairwise(by_end):
        assert later.late is not None and earlier.last is not None and later.late >= earlier.last
        assert later.ttft is not None and later.ttft >= later.late


async def test_a_trace_is_replayed_with_its_lengths(answering: tuple[AnsweringServer, str]) -> None:
    server, url = answering
    trace = [TracePoint(at / 10, 10 + at, 20 + at) for at in range(6)]
    run, turns = await session(url, protocols=(("chat", 1.0),), trace=trace).measure(None)
    assert sorted(each.plan.start for each in turns) == [each.start for each in trace]
    assert sorted(each["max_tokens"] for each in server.bodies) == [20 + at for at in range(6)]
    assert run.rate == pytest.approx(10.0)


async def test_a_search_finds_the_rate_that_a_bound_allows(answering: tuple[AnsweringServer, str]) -> None:
    """One socket and answers of at least `PIECES` pauses: no more than about ten of them fit in a second."""
    looking = session(
        answering[1],
        protocols=(("responses", 1.0),),
        tenants=("t0",),
        sockets=1,
        requests=8,
        objectives=Objectives(e2e=0.4, attainment=0.9),
    )
    runs, turns = await looking.search(4.0, 1000.0, 1.0)
    kept = [run.rate for run in runs if run.summary.verdict.met and not run.stopped]
    assert kept and max(kept) < max(run.rate for run in runs)
    assert turns


async def test_questions_of_a_search_are_new_in_every_run(answering: tuple[AnsweringServer, str]) -> None:
    server, url = answering
    looking = session(url, protocols=(("chat", 1.0),), requests=3)
    await looking.search(50.0, 100.0, 0.5)
    prompts = [each["messages"][0]["content"] for each in server.bodies]
    assert len(prompts) == 6 and len(set(prompts)) == 6


async def test_an_interrupt_keeps_what_was_measured(answering: tuple[AnsweringServer, str]) -> None:
    async def interrupt(loop: OpenLoop, planned: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    trace = [TracePoint(0.0, 5, 5), TracePoint(1.3, 5, 5), TracePoint(1.4, 5, 5)]
    interrupted = session(answering[1], watch=interrupt, trace=trace)
    run, turns = await interrupted.measure(None)
    assert interrupted.interrupted and run.stopped
    assert len(turns) <= 1


async def test_a_plan_without_turns_cannot_be_measured(answering: tuple[AnsweringServer, str]) -> None:
    nothing = session(answering[1], trace=[TracePoint(9.0, 5, 5)])
    with pytest.raises(Unmeasurable, match="no turn is due"):
        await nothing.measure(None)


async def test_the_server_is_asked_for_its_models(answering: tuple[AnsweringServer, str]) -> None:
    target = LoadTarget(Address.parse(answering[1]), TENANTS, KEYS)
    assert await look(target) == ["first-model", "second-model"]
    elsewhere = msgspec.structs.replace(target, address=Address.parse(answering[1] + "/elsewhere"))
    assert await look(elsewhere) == []


async def test_a_key_that_is_not_accepted_is_told_without_it(answering: tuple[AnsweringServer, str]) -> None:
    headers = {"t": {"Authorization": "Bearer wrong-key"}}
    with pytest.raises(Unmeasurable, match=r"refuses: 401 invalid_api_key: \*\*\* is not known"):
        await look(LoadTarget(Address.parse(answering[1]), headers, ("wrong-key",)))


async def test_a_server_that_is_not_there_is_told() -> None:
    with pytest.raises(Unmeasurable, match=r"no server answers at http://127\.0\.0\.1:1/v1"):
        await look(LoadTarget(Address.parse("http://127.0.0.1:1"), TENANTS))
