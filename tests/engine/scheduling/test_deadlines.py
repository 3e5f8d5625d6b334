"""Time limits: who has to have started, who has to have ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from engine.core import EngineCore, EngineFeatures
from engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from engine.grammar.constraints import Constraints
from engine.request import Request, RequestError, State
from engine.scheduling.config import SchedulerConfig
from engine.scheduling.deadlines import Deadlines
from engine.wire import Generate, Grammar, Output, SamplingParams
from tests.engine.ledger_runner import LedgerRunner, model_info


def _request(id: str = "a", **limits: float) -> Request:
    return Request(id, [1], SamplingParams(), 10.0, **limits)  # type: ignore[arg-type]


def test_a_limit_is_missed_when_its_time_has_come_and_named_once() -> None:
    deadlines = Deadlines()
    request = _request(queue_timeout=5.0, timeout=5.0)
    deadlines.add(request, 1)
    assert deadlines.due(14.9) == []
    assert deadlines.due(15.0) == [request]
    assert deadlines.due(99.0) == []


def test_the_first_step_meets_the_queue_limit_and_the_end_meets_both() -> None:
    deadlines = Deadlines()
    started, ended = _request("a", queue_timeout=5.0), _request("b", timeout=5.0)
    for request in (started, ended):
        deadlines.add(request, 2)
    started.first_scheduled = 12.0
    ended.move_to(State.FINISHED)
    assert deadlines.due(99.0) == []


def test_limits_that_were_met_long_before_they_are_due_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        request = _request(str(number), timeout=1e6)
        deadlines.add(request, 1)
        request.move_to(State.FINISHED)
    assert len(deadlines) < 200


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


def _core(clock: list[float], features: EngineFeatures | None = None) -> EngineCore:
    config = SchedulerConfig(8, max_running=1)
    return EngineCore(LedgerRunner(8), model_info(), config, features, clock=lambda: clock[0])


def _ends(outputs: list[Output]) -> dict[str, str]:
    return {output.id: output.finish for output in outputs if output.finish is not None}


def test_who_waits_too_long_for_its_first_step_ends_without_one(clock: list[float]) -> None:
    core = _core(clock)
    core.add(Generate("running", [1, 2], SamplingParams(max_tokens=50, ignore_eos=True)))
    core.add(Generate("waiting", [1, 2], SamplingParams(), queue_timeout=3.0))
    core.step()
    clock[0] = 2.9
    assert _ends(core.step()) == {}
    clock[0] = 3.0
    assert _ends(core.step()) == {"waiting": "error"}
    assert len(core) == 1
    core.check_integrity()


def test_who_takes_too_long_in_all_ends_with_what_it_has(clock: list[float]) -> None:
    core = _core(clock)
    core.add(Generate("a", [1, 2], SamplingParams(max_tokens=50, ignore_eos=True), timeout=3.0))
    core.step()
    core.step()
    clock[0] = 3.0
    [end] = core.step()
    assert (end.finish, end.usage.output_tokens if end.usage else None) == ("timeout", 2)
    assert len(core) == 0
    core.check_integrity()


class Slow(GrammarCompiler):
    """Compiles when it is told to."""

    def __init__(self) -> None:
        self.futures: dict[Grammar, Future[CompiledGrammar]] = {}

    def compile(self, grammar: Grammar, done: Callable[[], None], tenant: str = "") -> Future[CompiledGrammar]:
        future = self.futures[grammar] = Future()
        future.add_done_callback(lambda _: done())
        return future

    def release(self, grammar: Grammar, tenant: str = "") -> None:
        del self.futures[grammar]

    def close(self) -> None: ...


GRAMMAR = Grammar("choice", '["a"]')


@pytest.mark.parametrize("limit", ["queue_timeout", "timeout"])
def test_limits_count_while_a_grammar_is_compiled(clock: list[float], limit: str) -> None:
    """And whoever steps the core knows when to look, although there is nothing to do."""
    compiler = Slow()
    core = _core(clock, EngineFeatures(constraints=Constraints(compiler, 8)))
    core.add(Generate("a", [1, 2], SamplingParams(), grammar=GRAMMAR, **{limit: 3.0}))
    core.add(Generate("b", [1, 2], SamplingParams(), grammar=Grammar("choice", '["b"]')))
    assert core.idle and core.patience == 3.0
    clock[0] = 2.0
    assert core.step() == [] and core.patience == 1.0
    clock[0] = 3.0
    assert core.patience == 0.0
    [end] = core.step()
    assert (end.id, end.finish, end.error_kind) == ("a", "error", "overloaded")
    assert core.idle and core.patience is None and list(compiler.futures) == [Grammar("choice", '["b"]')]
    core.cancel("b")
    core.step()
    core.add(Generate("a", [1, 2], SamplingParams(), grammar=GRAMMAR))  # its id is free again
    core.cancel("a")
    assert _ends(core.step()) == {"a": "cancelled"}
    core.check_integrity()


def test_a_grammar_that_was_waited_for_leaves_that_much_less_time_in_the_queue(clock: list[float]) -> None:
    """A request that would begin too late is refused when its turn in the queue would come."""
    compiler = Slow()
    core = _core(clock, EngineFeatures(constraints=Constraints(compiler, 8)))
    core.add(Generate("runs", [1, 2], SamplingParams(max_tokens=80, ignore_eos=True)))
    for _ in range(10):  # steps take a second
        core.step()
        clock[0] += 1.0
    with pytest.raises(RequestError) as hopeless:
        core.add(Generate("now", [1, 2], SamplingParams(max_tokens=8), queue_timeout=1e-3))
    assert hopeless.value.retry_after is not None and hopeless.value.retry_after > 1.0
    limit = hopeless.value.retry_after + 1.0
    core.add(Generate("waits", [1, 2], SamplingParams(max_tokens=8), grammar=GRAMMAR, queue_timeout=limit))
    core.add(Generate("in time", [1, 2], SamplingParams(max_tokens=8), queue_timeout=limit))
    core.cancel("in time")
    clock[0] += 2.0
    compiler.futures[GRAMMAR].set_result(SimpleNamespace(matcher=lambda sampling: None))  # type: ignore[arg-type]
    ends = {output.id: output for output in core.step() if output.finish is not None}
    assert ends["waits"].error_kind == "overloaded" and "would wait about" in (ends["waits"].error or "")


def test_the_engine_tells_both_kinds_and_when_to_try_again(clock: list[float]) -> None:
    """Steps take a second each here."""

    def tick() -> float:
        clock[0] += 0.5
        return clock[0]

    config = SchedulerConfig(blocks=8, max_running=1)
    core = EngineCore(LedgerRunner(8), model_info(), config, clock=tick)
    core.add(Generate("runs", [1, 2], SamplingParams(max_tokens=90, ignore_eos=True), timeout=20.0))
    core.add(Generate("waits", [1, 2], SamplingParams(max_tokens=9), queue_timeout=5.0))
    ends = {}
    while not core.idle:
        ends |= {output.id: output for output in core.step() if output.finish is not None}
    assert ends["runs"].finish == "timeout"
    assert ends["runs"].usage is not None
    assert 0 < ends["runs"].usage.output_tokens < 90
    assert (ends["waits"].finish, ends["waits"].error_kind) == ("error", "overloaded")
    assert ends["waits"].retry_after is not None
    assert ends["waits"].retry_after > 0
