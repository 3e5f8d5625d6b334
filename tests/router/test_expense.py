"""What answers cost, are expected to cost, and would have cost at the dearest tier."""

from __future__ import annotations

import numpy as np
import pytest

from router.expense import AnswerLengths, ExpectedCosts, TokenRates, answered, flat
from router.success import Basis, Prediction, shipped
from router.tier import Outlook, Terms, ValueSource, choose, price_table

RATES = (TokenRates(1, 0.5, 2), TokenRates(2, 1, 4), TokenRates(10, 5, 30))


def test_a_request_is_expected_to_cost_its_tokens_at_each_tiers_rates() -> None:
    """In units of an average request at the dearest tier; what is cached and limited costs less."""
    expected = ExpectedCosts(RATES, (50.0, 50.0, 100.0), 4000.0)
    assert expected.of([100, 100, 100]) == (200 / 4000, 400 / 4000, 4000 / 4000)
    assert expected.of([100, 100, 100], cached=(0, 0, 400))[2] == (500 + 3000) / 4000
    assert expected.of([100, 100, 100], limit=10) == (120 / 4000, 240 / 4000, 1300 / 4000)


def test_a_model_without_tokens_expects_nothing() -> None:
    assert ExpectedCosts.learnt(RATES, shipped()) is None


def test_a_long_request_is_sent_up_less_for_the_same_gain() -> None:
    believed = Prediction((0.3, 0.35, 0.55), Basis.FEATURES, 0.5)
    tiers = [
        choose(Outlook(ValueSource.LEARNT, 0.5, believed, costs=costs), Terms(0.3, 0.3, (0.1, 0.3, 1.0))).tier
        for costs in (None, (0.01, 0.03, 0.1), (0.4, 1.2, 4.0))
    ]
    assert tiers == ["small", "large", "small"]


def test_the_knob_is_linear_in_expected_money() -> None:
    generator = np.random.default_rng(0)
    calibration = np.sort(generator.beta(2, 3, (2000, 3)), axis=1)
    spread = np.array([0.1, 0.3, 1.0]) * generator.exponential(1.0, (2000, 1))
    table = price_table(calibration, spread)
    small, _, large = spread.mean(axis=0)
    for knob in (20, 50, 80):
        utility = calibration - table[knob] * spread
        spent = spread[np.arange(2000), utility.argmax(axis=1)].mean()
        assert spent == pytest.approx(small + knob / 100 * (large - small), rel=0.02)


def test_the_ratio_of_lengths_is_learnt_and_held_back_where_a_tier_has_hardly_answered() -> None:
    lengths = AnswerLengths()
    assert lengths.ratio(0) == 1.0
    for _ in range(2000):
        lengths = answered(answered(lengths, 0, 100.0), 2, 300.0)
    assert lengths.ratio(0) == pytest.approx(3.0, rel=0.05)
    assert lengths.ratio(2) == pytest.approx(1.0)
    # Nothing is known of medium: it counts as the mean of the others.
    assert lengths.mean(1) == pytest.approx(200.0, rel=0.01)


def test_old_answers_fade() -> None:
    lengths = AnswerLengths()
    for tokens in (1000.0, 100.0):
        for _ in range(8000):
            lengths = answered(lengths, 0, tokens)
    assert lengths.mean(0) == pytest.approx(100.0, rel=0.05)


def test_flat_rates_make_all_tokens_alike() -> None:
    assert [rate.cost(3, 2, 4) for rate in flat((0.1, 0.5, 1.0))] == pytest.approx([0.7, 3.5, 7.0])
