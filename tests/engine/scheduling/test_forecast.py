"""Predicted queue times, and refusals that say when to come back."""

from __future__ import annotations

import random

import pytest

from engine.request import Request, RequestError
from engine.scheduling.config import POLICIES, SchedulerConfig
from engine.scheduling.forecast import Forecast
from engine.wire import PolicyName, SamplingParams
from scale.capacity import StepCost
from scale.simulation import Arrival, simulate
from tests.engine.scheduler_bench import Bench
from tests.engine.speculation.drafts import ledger_drafts


def test_speed_is_tokens_over_the_seconds_of_their_steps() -> None:
    forecast = Forecast()
    assert forecast.seconds(100) is None
    forecast.step(0.0, 50)
    forecast.step(0.5, 50)
    assert forecast.seconds(100) == pytest.approx(1.0)


def test_drafts_that_were_right_are_work_done() -> None:
    bench = Bench()
    bench.draft = ledger_drafts(random.Random(0), right=1.0)
    bench.add("a", 10, max_tokens=100)
    bench.run()
    assert bench.scheduler._forecast.tokens_per_second * (bench.now - 1) == pytest.approx(10 + 99, rel=0.2)


def test_idle_time_is_no_step_s() -> None:
    forecast = Forecast()
    forecast.step(0.0, 50)
    forecast.step(0.5, 50)
    forecast.idle()
    forecast.step(1000.0, 50)
    assert forecast.tokens_per_second == pytest.approx(100.0)


def test_the_length_of_answers_is_learnt_from_those_that_ended() -> None:
    forecast = Forecast()
    for _ in range(500):
        forecast.answered(prompt=10, output=20)
    assert forecast.work(Request("a", [0] * 7, SamplingParams(max_tokens=1000), 0.0)) == 7 + 20
    assert forecast.work(Request("a", [0] * 7, SamplingParams(max_tokens=5), 0.0)) == 7 + 5
    assert forecast.request_tokens == pytest.approx(30, rel=0.01)


def _busy(policy: PolicyName, waiting: int = 10) -> Bench:
    """One row taken, so many requests of 8 tokens waiting, and a second per step."""
    bench = Bench(max_running=1, policy=policy)
    for number in range(waiting + 1):
        bench.add(str(number), 4, max_tokens=4, tenant="greedy", service="standard")
    bench.step()
    bench.step()
    return bench


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_that_would_wait_longer_than_it_may_is_refused_with_the_time_to_come_back(policy: PolicyName) -> None:
    bench = _busy(policy)
    with pytest.raises(RequestError, match="busy") as caught:
        bench.add("late", 4, tenant="greedy", queue_timeout=1.0)
    assert caught.value.kind == "overloaded"
    predicted = bench.scheduler.queue_seconds
    assert caught.value.retry_after == pytest.approx(predicted - 1.0)
    assert len(bench.scheduler) == 11
    bench.add("patient", 4, tenant="greedy", queue_timeout=predicted + 1.0)


def test_the_engine_s_own_limit_holds_for_everybody() -> None:
    bench = Bench(max_running=1, max_queue_seconds=1.0)
    for number in range(10):
        bench.add(str(number), 4)
    bench.step()
    bench.step()
    with pytest.raises(RequestError, match="busy"):
        bench.add("late", 4)


def test_the_prediction_follows_the_policy_s_own_order() -> None:
    """A class above all others, and under `fair` a tenant without backlog, have nearly nobody ahead."""
    assert _busy("priority").add("first", 4, service="premium", queue_timeout=12.0).service == "premium"
    assert _busy("fair").add("polite", 4, tenant="polite", queue_timeout=12.0).tenant == "polite"
    with pytest.raises(RequestError, match="busy"):
        _busy("fcfs").add("polite", 4, tenant="polite", queue_timeout=12.0)


def test_nothing_is_refused_before_anything_was_measured() -> None:
    bench = Bench(max_running=1)
    for number in range(50):
        bench.add(str(number), 4, queue_timeout=0.001)


@pytest.mark.parametrize("policy", POLICIES)
def test_predictions_are_about_right(policy: PolicyName) -> None:
    """Of a steady stream, what is predicted on arrival is within a factor of two of what comes, or two seconds."""
    predicted: dict[str, float] = {}
    actual: dict[str, float] = {}

    def observe(scheduler, plan, now) -> None:  # type: ignore[no-untyped-def]
        for request in scheduler.waiting:
            predicted.setdefault(request.id, scheduler.queue_seconds)
        for request in scheduler.running:
            actual.setdefault(request.id, request.first_scheduled - request.arrival)

    arrivals = [Arrival(0.08 * i, "one", [i] * 100, 60) for i in range(200)]
    config = SchedulerConfig(blocks=1000, max_running=8, policy=policy)
    simulate(arrivals, config, StepCost(0.01, 0.0001, 0.001), observe=observe)
    settled = [id for id in predicted if 50 < int(id) < 180]
    assert len(settled) > 110
    for id in settled:
        assert predicted[id] <= 2 * actual[id] + 2
        assert actual[id] <= 2 * predicted[id] + 2
