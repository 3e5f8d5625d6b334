"""The budget's price over streams of requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.budget import HIGHEST, LOWEST, Budget, charge
from router.expense import AnswerLengths, TokenRates, answered, flat
from router.success import Basis, Prediction
from router.tier import TIERS, Outlook, Terms, ValueSource, choose

COSTS = (0.1, 0.3, 1.0)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("start", [0.01, 2.0])
def test_the_share_is_kept_although_the_traffic_changes(share: float, start: float) -> None:
    """Hard requests first, then easy ones, then long ones; begun at a price that is far off."""
    generator = np.random.default_rng(0)
    budget = Budget(share, start)
    for number in range(6000):
        strength = (1, 6, 2)[number // 2000]
        small, medium, large = np.sort(generator.beta(strength, 3, 3))
        outlook = Outlook(ValueSource.LEARNT, 0, Prediction((small, medium, large), Basis.EMBEDDING, 0))
        tier = choose(outlook, Terms(budget.price, 0.2, COSTS)).tier
        dearest = float(generator.integers(50, 500))
        budget = charge(budget, COSTS[TIERS.index(tier)] * dearest, dearest)
    assert budget.realised == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_the_share_is_of_what_the_dearest_tier_would_have_answered(factor: float) -> None:
    """Its answers are longer or shorter than those of the small one, which shows in those that were given."""
    generator, rates = np.random.default_rng(0), flat(COSTS)
    budget, lengths, spent, dearest = Budget(0.5, 0.2), AnswerLengths(), 0.0, 0.0
    for _ in range(6000):
        small, medium, large = np.sort(generator.beta(2, 3, 3))
        outlook = Outlook(ValueSource.LEARNT, 0, Prediction((small, medium, large), Basis.EMBEDDING, 0))
        tier = TIERS.index(choose(outlook, Terms(budget.price, 0.2, COSTS)).tier)
        prompt, answer = (float(each) for each in generator.integers(50, 500, 2))
        answers = [answer, answer, factor * answer]
        cost = rates[tier].cost(prompt, 0, answers[tier])
        budget = charge(budget, cost, rates[-1].cost(prompt, 0, answers[tier] * lengths.ratio(tier)))
        lengths = answered(lengths, tier, answers[tier])
        spent, dearest = spent + cost, dearest + rates[-1].cost(prompt, 0, answers[-1])
    assert spent / dearest == pytest.approx(0.5, abs=0.01)


def test_cached_tokens_have_a_rate_of_their_own() -> None:
    assert TokenRates(1.0, 0.25, 4.0).cost(100, 60, 10) == 40 + 15 + 40


def test_nothing_spent_is_no_share() -> None:
    assert Budget(0.5, 0.1).realised is None


@given(st.floats(0.01, 1), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e6)), max_size=50))
def test_the_price_stays_within_its_bounds(share: float, spent: list[tuple[float, float]]) -> None:
    budget = Budget(share, 0.1)
    for cost, dearest in spent:
        before, budget = budget, charge(budget, cost * dearest, dearest)
        assert LOWEST <= budget.price <= HIGHEST
        assert (budget.price >= before.price) == (cost * dearest >= share * dearest) or budget.price == before.price
