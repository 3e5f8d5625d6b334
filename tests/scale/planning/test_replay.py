"""Loads through the engine's scheduler: times that can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import pytest

from engine.scheduling.config import SchedulerConfig
from engine.step_times import StepWork
from scale.planning.bounds import LatencyAims
from scale.planning.replay import Percentiles, replay
from scale.simulation import Arrival

CONFIG = SchedulerConfig(blocks=200, step_tokens=100, max_running=4)
AIMS = LatencyAims(ttft=0.5, itl=0.2)


class Tokens:
    """10 ms for each token."""

    def seconds(self, work: StepWork) -> float:
        return 0.010 * work.tokens

    def run(self) -> Callable[[StepWork], float]:
        return self.seconds


class Turns(Tokens):
    """Of two steps one takes 5 ms a token and the other 15 ms."""

    def run(self) -> Callable[[StepWork], float]:
        paces = cycle((0.5, 1.5))
        return lambda work: self.seconds(work) * next(paces)


def arrival(at: float, prompt: int, output: int, first: int = 1) -> Arrival:
    return Arrival(at, "", list(range(first, first + prompt)), output)


def test_a_request_alone_takes_its_steps() -> None:
    result = replay([arrival(0.0, 30, 5)], CONFIG, Tokens(), AIMS)
    assert result.ttft.p50 == pytest.approx(0.30)
    assert result.itl.p99 == pytest.approx(0.010)
    assert (result.requests, result.within, result.preemptions, result.hits) == (1, 1.0, 0, 0.0)
    assert result.tokens_per_second == pytest.approx(5 / 0.34)


def test_a_prompt_beside_decodes_lengthens_their_gaps() -> None:
    result = replay([arrival(0.0, 20, 20), arrival(0.255, 50, 1, first=500)], CONFIG, Tokens(), AIMS)
    assert result.itl.p50 == pytest.approx(0.010)
    assert result.itl.p99 == pytest.approx(0.510)


def test_requests_out_of_their_aims_are_counted() -> None:
    """Five come alone, the first two of which do not count; five come together and wait for one another."""
    times = [0.0, 5.0, 10.0, 15.0, 20.0, *[25.0] * 5]
    result = replay(
        [arrival(at, 40, 2, first=1000 * number) for number, at in enumerate(times)], CONFIG, Tokens(), AIMS
    )
    assert (result.requests, result.within) == (8, 3 / 8)


def test_a_beginning_that_was_computed_is_found_again() -> None:
    result = replay([arrival(0.0, 64, 1), arrival(5.0, 64, 1)], CONFIG, Tokens(), AIMS)
    assert result.hits == pytest.approx(48 / 128)  # the last block is computed again
    assert result.ttft.p50 == pytest.approx(0.16)


def test_steps_take_what_the_cost_says_of_one_after_another() -> None:
    result = replay([arrival(0.0, 1, 1001)], CONFIG, Turns(), AIMS)
    assert result.itl.p50 == pytest.approx(0.005)
    assert result.itl.p95 == pytest.approx(0.015)
    assert result.tokens_per_second == pytest.approx(100, rel=0.01)
    assert result == replay([arrival(0.0, 1, 1001)], CONFIG, Turns(), AIMS)


def test_percentiles_are_values_that_so_many_do_not_exceed() -> None:
    assert Percentiles.of([float(value) for value in range(1, 101)]) == Percentiles(50.0, 95.0, 99.0)
