"""Figures of merit against brute force and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import brier_score_loss

from router import evaluation

SEEDS = st.integers(0, 2**32 - 1)


def sample(seed: int, size: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, outcomes drawn from them, and rising costs."""
    generator = np.random.default_rng(seed)
    probabilities = np.sort(generator.random((size, 3)), axis=1)
    outcomes = (generator.random((size, 3)) < probabilities).astype(float)
    outcomes[:2] = [[0, 0, 1], [0, 1, 1]]  # so that large is better than small
    return probabilities, outcomes, np.cumsum(generator.random((size, 3)) + 0.01, axis=1)


def test_a_coin_is_a_straight_line() -> None:
    _, outcomes, costs = sample(0)
    assert evaluation.area(evaluation.random_mixture(outcomes, costs))[0] == pytest.approx(0.5)


def test_all_large_quality_at_all_small_cost_is_nearly_one() -> None:
    """Half the requests need the large tier; it costs next to nothing more where it is no use."""
    outcomes = np.array([[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]] * 50)
    costs = np.array([[1.0, 2.0, 3.0], [1.0, 500.0, 1000.0]] * 50)
    assert evaluation.area(evaluation.route_all(outcomes, outcomes, costs, costs))[0] > 0.99


@given(SEEDS)
def test_the_curve_begins_at_all_small_and_ends_at_all_large(seed: int) -> None:
    probabilities, outcomes, costs = sample(seed)
    routed = evaluation.route_all(probabilities, outcomes, costs, costs)
    assert (routed.cost[0] == costs[:, 0]).all() and (routed.cost[-1] == costs[:, 2]).all()
    assert (np.diff(routed.cost.mean(axis=1)) >= -1e-9).all(), "a lower price never spends less"


@given(SEEDS)
def test_no_beliefs_beat_the_oracle(seed: int) -> None:
    probabilities, outcomes, costs = sample(seed)
    flat = np.tile([0.1, 0.2, 1.0], (len(costs), 1))
    oracle = evaluation.area(evaluation.route_all(outcomes, outcomes, flat, flat))[0]
    assert oracle >= evaluation.area(evaluation.route_all(probabilities, outcomes, flat, flat))[0] - 1e-9


@given(arrays.arrays(float, 12, elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])), SEEDS)
def test_apgr_is_the_mean_over_orders_of_ties(scores: np.ndarray, seed: int) -> None:
    _, outcomes, _ = sample(seed, 12)
    weak, strong = outcomes[:, 0], outcomes[:, 2]
    if strong.mean() == weak.mean():
        return
    generator = np.random.default_rng(seed)
    areas = []
    for _ in range(300):
        order = np.lexsort((generator.random(12), -scores))
        curve = np.concatenate([[0.0], np.cumsum((strong - weak)[order])]) / 12
        areas.append(np.mean((curve[1:] + curve[:-1]) / 2) / (strong.mean() - weak.mean()))
    spread = np.std(areas) / np.sqrt(len(areas))
    assert evaluation.apgr(scores, weak, strong)[0] == pytest.approx(np.mean(areas), abs=5 * spread + 1e-9)


@given(SEEDS)
def test_a_resample_is_the_figure_of_the_requests_drawn(seed: int) -> None:
    probabilities, outcomes, costs = sample(seed)
    drawn = evaluation.resamples(len(costs), 1, seed)
    rows = np.repeat(np.arange(len(costs)), drawn[0].astype(int))
    weak, strong = outcomes[rows][:, 0], outcomes[rows][:, 2]
    if strong.mean() <= weak.mean():
        return
    whole = evaluation.route_all(probabilities, outcomes, costs, costs)
    part = evaluation.RoutingCurve(whole.quality[:, rows], whole.cost[:, rows])
    assert evaluation.area(whole, drawn)[0] == pytest.approx(evaluation.area(part)[0])
    assert evaluation.brier(probabilities, outcomes, drawn)[0] == pytest.approx(
        evaluation.brier(probabilities[rows], outcomes[rows])[0]
    )
    scores = probabilities[:, 0]
    of_rows = evaluation.apgr(scores[rows], weak, strong)[0]
    assert evaluation.apgr(scores, outcomes[:, 0], outcomes[:, 2], drawn)[0] == pytest.approx(of_rows)


def test_brier_is_that_of_scikit_learn() -> None:
    probabilities, outcomes, _ = sample(3)
    expected = np.mean([brier_score_loss(outcomes[:, tier], probabilities[:, tier]) for tier in range(3)])
    assert evaluation.brier(probabilities, outcomes)[0] == pytest.approx(expected)


def test_calibration_error_is_the_distance_from_the_diagonal() -> None:
    outcomes = np.array([0.0, 1.0] * 500)
    assert evaluation.calibration_error(evaluation.reliability(np.full(1000, 0.5), outcomes)) == pytest.approx(0)
    assert evaluation.calibration_error(evaluation.reliability(np.full(1000, 0.8), outcomes)) == pytest.approx(0.3)


def test_the_cost_of_quality_is_the_first_price_that_reaches_it() -> None:
    routed = evaluation.RoutingCurve(
        quality=np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]), cost=np.array([[1.0, 1.0], [2.0, 1.0], [4.0, 4.0]])
    )
    assert evaluation.cost_of_quality(routed, 0.5)[0] == pytest.approx(3 / 8)
    assert evaluation.cost_of_quality(routed, 0.95)[0] == 1.0
