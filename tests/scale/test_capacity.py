"""What a replica can do, from measured steps."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale.capacity import Capacity, MeasuredStep, StepCost, fit, learn

COST = StepCost(base=0.02, token=2e-4, row=1e-4, kv_byte=4e-12)
parts = st.floats(0.1, 10)


def steps(cost: StepCost, noise: float = 0.0) -> list[MeasuredStep]:
    chance = random.Random(1)
    sizes = [(rows + prompt, rows, rows * 10**8 * chance.random()) for rows in (1, 8, 32) for prompt in (0, 100, 2000)]
    return [MeasuredStep(cost.seconds(*size) * (1 + noise * chance.gauss(0, 1)), *size) for size in sizes]


@given(parts, parts, parts, parts)
def test_a_fit_finds_the_cost_that_made_the_steps(base: float, token: float, row: float, kv_byte: float) -> None:
    cost = StepCost(COST.base * base, COST.token * token, COST.row * row, COST.kv_byte * kv_byte)
    found = fit(steps(cost))
    assert msgspec.structs.astuple(found) == pytest.approx(msgspec.structs.astuple(cost), rel=1e-3)


@given(st.lists(st.tuples(st.floats(1e-3, 1), st.floats(1, 4096), st.floats(1, 64)), min_size=1, max_size=12))
def test_no_part_of_a_fitted_cost_is_negative(measured: list[tuple[float, float, float]]) -> None:
    cost = fit([MeasuredStep(*each) for each in measured])
    assert min(msgspec.structs.astuple(cost)) >= 0


def test_noise_moves_the_predicted_step_less_than_itself() -> None:
    cost = fit(steps(COST, noise=0.1))
    assert cost.seconds(1000, 16, 5e8) == pytest.approx(COST.seconds(1000, 16, 5e8), rel=0.1)


def test_a_replica_at_its_full_batch_does_one_replica_second_of_work_a_second() -> None:
    batch, context = 32, 10**8
    capacity = Capacity.of(COST, batch, context)
    step = COST.seconds(batch + 500, batch, batch * context)
    assert capacity.work(500, batch) == pytest.approx(step)


def test_what_is_learnt_keeps_steps_of_different_sizes() -> None:
    known: tuple[MeasuredStep, ...] = ()
    for seconds in (0.1, 0.2):
        for rows in (1, 2, 30, 32):
            known = learn(known, MeasuredStep(seconds, rows, rows))
    assert sorted((step.rows, step.seconds) for step in known) == [(1, 0.2), (2, 0.2), (32, 0.2)]
