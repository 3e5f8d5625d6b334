"""The cost of a step is learnt from steps; chance and first times do not decide."""

from __future__ import annotations

import random

import pytest

from engine.speculation.costs import StepCosts


def learnt(seconds: dict[int, float], times: int = 3) -> StepCosts:
    costs = StepCosts()
    for size, each in seconds.items():
        for _ in range(times):
            costs.observe(size, each)
    return costs


def test_nothing_is_known_at_first() -> None:
    assert StepCosts().seconds(4) == 0


def test_a_size_counts_from_its_third_observation_on() -> None:
    costs = learnt({1: 2.0})
    costs.observe(5, 90.0)
    costs.observe(5, 8.0)
    assert costs.seconds(2) == 2.0
    costs.observe(5, 8.0)
    assert costs.seconds(2) > 2.0


def test_sizes_between_known_ones_cost_something_in_between() -> None:
    costs = learnt({1: 1.0, 4: 4.0, 9: 5.0})
    assert costs.seconds(3) == pytest.approx(3.0)
    assert costs.seconds(5) == pytest.approx(4.2)


def test_beyond_the_known_sizes_it_goes_on_as_between_them() -> None:
    costs = learnt({4: 4.0, 9: 5.0})
    assert (costs.seconds(1), costs.seconds(14)) == (4.0, 6.0)


def test_from_a_single_size_twice_as_much_seems_free() -> None:
    """So that larger steps are tried one after the other instead of a huge one at once."""
    costs = learnt({4: 4.0})
    assert (costs.seconds(8), costs.seconds(16)) == (4.0, 8.0)


def test_an_old_estimate_gives_way_to_a_new_observation() -> None:
    costs = learnt({2: 9.0}, times=50)
    for _ in range(300):
        costs.observe(1, 1.0)
    costs.observe(2, 1.0)
    assert costs.seconds(2) == 5.0


def test_large_sizes_are_counted_together() -> None:
    costs = StepCosts()
    for size in (1000, 1010, 1020):
        costs.observe(size, 3.0)
    assert costs.seconds(1015) == 3.0


def test_a_rare_slow_step_changes_little_and_a_lasting_change_is_followed() -> None:
    generator = random.Random(0)
    costs = StepCosts()
    for _ in range(300):
        costs.observe(3, 50.0 if generator.random() < 0.05 else generator.uniform(1.0, 1.1))
    assert 1.0 < costs.seconds(3) < 1.2
    for _ in range(100):
        costs.observe(3, 2.0)
    assert costs.seconds(3) == pytest.approx(2.0, rel=0.05)
    for _ in range(10):
        costs.observe(3, 1.0)
    assert costs.seconds(3) == pytest.approx(1.0, rel=0.05)
