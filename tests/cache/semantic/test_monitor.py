"""The measured error and what follows from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from cache.semantic.monitor import Control, Mode, Monitor, after_check, reset

CONTROL = Control()


def checked(
    monitor: Monitor, outcomes: list[bool], *, propensity: float = 0.1, delta: float = 0.01, look_ups: int = 10
) -> Monitor:
    for correct in outcomes:
        monitor = after_check(
            monitor, correct=correct, propensity=propensity, look_ups=look_ups, delta=delta, control=CONTROL
        )
    return monitor


def test_without_checks_nothing_is_known() -> None:
    estimate = Monitor().estimate()
    assert (estimate.low, estimate.high) == (0.0, 1.0)


@pytest.mark.parametrize("wrong", [0, 1, 3, 10, 40])
def test_the_interval_is_that_of_a_count(wrong: int) -> None:
    monitor = Monitor(look_ups=1000, checks=100, weight=100, wrong=wrong, squares=wrong, wrong_checks=wrong)
    estimate = monitor.estimate()
    assert estimate.error == wrong / 1000
    # A score interval inverts a normal test: the tails of the exact distribution are about 2.5 % there.
    assert 0.003 < poisson.cdf(wrong, 1000 * estimate.high) < 0.06
    if wrong > 1:
        assert 0.003 < poisson.sf(wrong - 1, 1000 * estimate.low) < 0.1


def test_weighting_by_the_inverse_propensity_removes_the_bias_of_checking_one_kind_more_often() -> None:
    random = np.random.default_rng(7)
    control = Control(memory=1e9)
    monitor, since = Monitor(), 0
    for _ in range(60_000):
        since += 1
        served = random.random() < 0.5
        # The kind that is checked five times as often is wrong far more often.
        risky = random.random() < 0.5
        propensity = 0.5 if risky else 0.1
        if served and random.random() < propensity:
            wrong = random.random() < (0.3 if risky else 0.02)
            monitor = after_check(
                monitor, correct=not wrong, propensity=propensity, look_ups=since, delta=0.9, control=control
            )
            since = 0
    estimate = monitor.estimate()
    assert estimate.low < 0.5 * 0.16 < estimate.high
    assert estimate.high - estimate.low < 0.02


def test_wrong_checks_make_it_stricter_and_look_ups_without_let_go_but_never_below_what_was_calibrated() -> None:
    after_wrong = checked(Monitor(), [False])
    assert after_wrong.strictness == pytest.approx(CONTROL.step * (10 - 0.1))
    assert checked(after_wrong, [True]).strictness == pytest.approx(CONTROL.step * (10 - 0.2))
    assert checked(Monitor(), [True] * 10).strictness == 0


def test_it_trips_when_even_the_lower_limit_is_above_the_bound() -> None:
    tripped = checked(Monitor(), [False, False, False])
    assert tripped.mode is Mode.EXACT_ONLY
    assert tripped.checks == 0


def test_few_wrong_checks_do_not_trip_it() -> None:
    assert checked(Monitor(), [False, False]).mode is Mode.ON
    assert checked(Monitor(), ([True] * 99 + [False]) * 5).mode is Mode.ON


def test_an_error_at_the_bound_trips_it_seldom() -> None:
    random = np.random.default_rng(3)
    trips = 0
    for _ in range(100):
        monitor = checked(Monitor(), list(random.random(300) >= 0.01))
        trips += monitor.mode is Mode.EXACT_ONLY
    assert trips <= 10


def test_it_serves_again_after_fresh_checks_that_clear_it() -> None:
    tripped = checked(Monitor(), [False, False, False])
    assert checked(tripped, [True] * (CONTROL.recover - 1), propensity=1).mode is Mode.EXACT_ONLY
    assert checked(tripped, [True] * CONTROL.recover, propensity=1).mode is Mode.ON
    assert checked(tripped, [False] * 2 * CONTROL.recover, propensity=1).mode is Mode.EXACT_ONLY


def test_an_operator_can_make_it_serve_again() -> None:
    tripped = checked(Monitor(), [False] * 3)
    assert reset(tripped) == Monitor(strictness=tripped.strictness)


@pytest.mark.parametrize("propensity", [0.0, -0.1, 1.5])
def test_an_impossible_propensity_is_refused(propensity: float) -> None:
    with pytest.raises(ValueError, match="propensity"):
        checked(Monitor(), [True], propensity=propensity)


def test_a_check_without_a_look_up_is_refused() -> None:
    with pytest.raises(ValueError, match="look-up"):
        checked(Monitor(), [True], look_ups=0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.01, 1)), max_size=200), st.floats(0.001, 0.2))
def test_its_figures_stay_within_their_bounds(outcomes: list[tuple[bool, float]], delta: float) -> None:
    monitor = Monitor()
    for correct, propensity in outcomes:
        monitor = checked(monitor, [correct], propensity=propensity, delta=delta)
    assert 0 <= monitor.strictness <= CONTROL.most
    estimate = monitor.estimate()
    assert 0 <= estimate.low <= estimate.high <= 1
