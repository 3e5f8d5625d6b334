"""What a judge's opinions are worth, by what people say of the same answers."""

from __future__ import annotations

import numpy as np
import pytest

from router.judging import FEWEST, RULES, TwicePair, opponent, trust
from router.success import Basis, Prediction
from router.tier import TIERS, Outlook, Terms, TierChoice, ValueSource, choose

COSTS = (0.1, 0.2, 1.0)


def pairs(number: int, right: float, *, larger: float = 0.6, longer: float = 0.6, seed: int = 0) -> list[TwicePair]:
    """A judge that agrees with people on a share of pairs; people prefer the larger tier, and the longer answer, as
    often as is said."""
    generator = np.random.default_rng(seed)
    people = np.where(generator.random(number) < larger, 1, -1)
    judge = np.where(generator.random(number) < right, people, -people)
    long = np.where(generator.random(number) < longer, people, -people)
    return [TwicePair(int(p), int(j), int(n)) for p, j, n in zip(people, judge, long, strict=True)]


def test_a_judge_that_reads_as_people_do_is_believed() -> None:
    """The more, the surer it is how often it agrees; never as much as a person."""
    few, many = trust(pairs(100, 0.85)), trust(pairs(2000, 0.85))
    assert few.established and many.established
    assert 0 < few.weight < many.weight < 1
    assert many.weight == pytest.approx((2 * 0.85 - 1) ** 2, abs=0.06)
    assert many.agreement.low < 0.85 < many.agreement.high


@pytest.mark.parametrize("rule", range(len(RULES)))
def test_a_judge_that_goes_by_a_rule_is_not_believed(rule: int) -> None:
    """However often people agree with the rule, and however many pairs there are."""
    share = 0.1 if rule % 2 else 0.9
    known = pairs(2000, 0.5, **{"larger" if rule < 2 else "longer": share})
    judged = [
        TwicePair(each.person, (1 - 2 * (rule % 2)) * (1 if rule < 2 else each.longer), each.longer) for each in known
    ]
    found = trust(judged)
    assert found.agreement.value > 0.85 and found.rule == RULES[rule]
    assert not found.established and found.weight == 0


def test_a_coin_and_a_few_pairs_establish_nothing() -> None:
    assert not trust(pairs(2000, 0.5, larger=0.5, longer=0.5)).established
    assert not trust(pairs(FEWEST - 1, 1.0)).established
    assert trust(pairs(FEWEST, 1.0)).established
    none = trust([])
    assert (none.pairs, none.established, none.weight) == (0, False, 0.0)


def test_answers_of_equal_length_are_half_right_for_the_longer_one() -> None:
    """Else a rule that names neither would count as always wrong, and its opposite as always right."""
    found = trust([TwicePair(1, 1, 0), TwicePair(-1, -1, 0)] * FEWEST)
    assert found.ahead.value == pytest.approx(0.5)


def choice(offered: tuple[str, ...] = TIERS) -> TierChoice:
    outlook = Outlook(ValueSource.LEARNT, 0.1, Prediction((0.5, 0.6, 0.7), Basis.FEATURES, 0.5))
    return choose(outlook, Terms(0.3, 0.2, COSTS), offered=offered)


def test_the_tier_that_comes_next_is_compared() -> None:
    made = choice()
    assert made.tier == "medium"
    assert opponent(made, {"small", "medium", "large"}) == "small"
    assert opponent(made, {"medium", "large"}) == "large"
    assert opponent(made, {"medium"}) is None
    assert opponent(choice(("medium", "large")), {"small", "medium", "large"}) == "large"
