"""The knob's positions beside fixed tiers and a coin."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import mixture
from router.knob import POSITIONS, SHOWN, RoutedQuestions, coin, compare, draw, means, positions, turn
from router.success import Basis, Prediction
from router.tier import NEVER, TIERS, Outlook, ValueSource, price_table

RELATIVE = (0.1, 0.4, 1.0)


def learnt(row: np.ndarray) -> Outlook:
    small, medium, large = (float(each) for each in row)
    return Outlook(ValueSource.LEARNT, 0.5, Prediction((small, medium, large), Basis.FEATURES, 0.5))


def made_up(seed: int, size: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities that rise with the tier, outcomes that follow them, and costs."""
    generator = np.random.default_rng(seed)
    probabilities = np.sort(generator.random((size, 3)), axis=1)
    outcomes = (generator.random((size, 3)) < probabilities).astype(float)
    return probabilities, outcomes, generator.uniform(50, 150, (size, 3)) * RELATIVE


def routed(beliefs: np.ndarray, outcomes: np.ndarray, costs: np.ndarray) -> RoutedQuestions:
    table = price_table(beliefs, RELATIVE)
    return turn([learnt(row) for row in beliefs], [table] * len(beliefs), RELATIVE, outcomes, costs)


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(0, 1)), min_size=1, max_size=4), st.floats(0, 1))
def test_the_coin_is_the_best_of_all_mixtures(tiers: list[tuple[float, float]], at: float) -> None:
    """As a fine grid over all pairs of tiers finds it."""
    costs, quality = (np.array([column]) for column in zip(*tiers, strict=True))
    cost = costs.min() + at * (costs.max() - costs.min())
    best = max(right for price, right in tiers if price <= cost + 1e-9)
    for (low, one), (high, other) in itertools.permutations(tiers, 2):
        for share in np.linspace(0, 1, 51):
            if share * high + (1 - share) * low <= cost:
                best = max(best, share * other + (1 - share) * one)
    found = coin(np.array([[cost]]), costs, quality)[0, 0]
    assert best - 1e-9 <= found <= best + 0.03


def test_the_ends_of_the_knob_are_the_fixed_tiers() -> None:
    probabilities, outcomes, costs = made_up(0)
    found = routed(probabilities, outcomes, costs)
    assert found.shares[0].tolist() == [1, 0, 0] and found.shares[-1].tolist() == [0, 0, 1]
    assert len(found.shares) == len(POSITIONS) == 101
    shown = positions(found, outcomes, costs, draw(len(outcomes)))
    assert [each.quality for each in shown] == list(SHOWN)
    assert shown[0].right.value == pytest.approx(outcomes[:, 0].mean())
    assert shown[-1].spent.value == pytest.approx(1) and shown[-1].shares == (0, 0, 1)
    assert (shown[0].above.value, shown[-1].above.value) == pytest.approx((0, 0), abs=1e-9)


def test_what_is_drawn_without_looking_is_worth_a_coin() -> None:
    """Or a little less: the coin's tiers are the best ones afterwards."""
    gains = []
    for seed in range(4):
        _, outcomes, costs = made_up(seed)
        blind = np.sort(np.random.default_rng(seed + 100).random(outcomes.shape), axis=1)
        gains.append(means(routed(blind, outcomes, costs), outcomes, costs).gain[0])
    assert -0.06 < np.mean(gains) < 0.01


def test_a_mixture_is_worth_the_coin_that_mixes_neighbouring_tiers() -> None:
    """Which is the best coin where medium is above the line from small to large, as here."""
    _, outcomes, costs = made_up(0, 600)
    costs = np.broadcast_to(RELATIVE, costs.shape) * 100
    dealt = [Outlook(ValueSource.MIXTURE, 0.5)] * len(outcomes)
    found = turn(dealt, [mixture.prices(RELATIVE, NEVER)] * len(dealt), RELATIVE, outcomes, costs)
    mean = means(found, outcomes, costs)
    assert mean.right == pytest.approx(mean.coin) and mean.gain[0] == pytest.approx(0.0)
    assert mean.cost[0][[0, 50, 100]] == pytest.approx([10, 55, 100])


def test_true_probabilities_beat_the_coin_and_an_oracle_beats_both() -> None:
    probabilities, _, costs = made_up(0)
    # What a smaller tier answers, a larger one does, too.
    outcomes = (np.random.default_rng(1).random((len(costs), 1)) < probabilities).astype(float)
    oracle, knowing = (
        means(routed(beliefs, outcomes, costs), outcomes, costs).gain[0] for beliefs in (outcomes, probabilities)
    )
    assert oracle > knowing > 0.02


def test_a_comparison_is_better_only_beyond_chance() -> None:
    probabilities, outcomes, costs = made_up(3, 400)
    blind = np.sort(np.random.default_rng(9).random(outcomes.shape), axis=1)
    knowing, guessing = routed(probabilities, outcomes, costs), routed(blind, outcomes, costs)
    drawn = draw(len(outcomes))
    verdict = compare(knowing, guessing, outcomes, costs, drawn)
    assert verdict.better and verdict.beats_coin
    assert verdict.difference.value == pytest.approx(verdict.fitted.value - verdict.in_use.value)
    assert not compare(guessing, knowing, outcomes, costs, drawn).better
    assert not compare(knowing, knowing, outcomes, costs, drawn).better


def test_tiers_of_equal_cost_make_no_gain_of_nothing() -> None:
    outcomes, costs = np.ones((50, 3)), np.ones((50, 3))
    found = routed(np.full((50, 3), 0.5), outcomes, costs)
    assert means(found, outcomes, costs).gain[0] == pytest.approx(0)
    assert len(TIERS) == 3
