"""Time limits: who has to have started, who has to have ended."""

from __future__ import annotations

import pytest

from engine.core import EngineCore
from engine.request import Request, State
from engine.scheduling.config import SchedulerConfig
from engine.scheduling.deadlines import Deadlines
from engine.wire import Generate, SamplingParams
from tests.engine.ledger_runner import LedgerRunner, model_info
from tests.engine.scheduler_bench import Bench


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


def test_who_waits_too_long_for_its_first_step_ends_without_one() -> None:
    bench = Bench(max_running=1)
    bench.add("running", 2, max_tokens=50)
    waiting = bench.add("waiting", 2, queue_timeout=3.0)
    bench.step()
    assert bench.scheduler.expire(2.9) == []
    assert bench.scheduler.expire(3.0) == [waiting]
    assert (waiting.state, waiting.finish) == (State.FINISHED, "error")
    bench.run()


def test_who_takes_too_long_in_all_ends_with_what_it_has() -> None:
    bench = Bench()
    request = bench.add("a", 2, max_tokens=50, timeout=3.0)
    bench.step()
    bench.step()
    assert bench.scheduler.expire(3.0) == [request]
    assert (request.finish, len(request.output)) == ("timeout", 2)
    bench.scheduler.check_integrity()
    assert bench.scheduler.pool.available == bench.scheduler.pool.total


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


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
