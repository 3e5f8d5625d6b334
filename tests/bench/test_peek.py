"""What peeks cost, who answers after them, and what evidence is made of."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.peek_beliefs import agreement, signals
from bench.peek_evidence import TierEvidence, entropy, margin
from bench.peek_policies import (
    OF_BOTH,
    OF_SMALL,
    PRICES,
    PeekBeliefs,
    PeekCosts,
    doubtful,
    peek_chosen,
    peek_if_small,
    peek_medium,
    peek_small,
    peek_up,
    route,
    straight,
)
from engine.wire import TokenIdLogprob

WHOLE = np.array([[0.1, 0.3, 1.0]])
COSTS = PeekCosts(WHOLE, 0.5 * WHOLE, WHOLE, 0.5 * WHOLE)
RIGHT = np.array([[0.0, 0.0, 1.0]])


def believed(before: list[float], after: list[float]) -> PeekBeliefs:
    later = np.array([after])
    return PeekBeliefs(np.array([before]), later, later, later)


def test_a_peek_costs_nothing_where_its_tier_answers() -> None:
    small = believed([0.5, 0.5, 0.5], [0.9, 0.9, 0.9])
    for policy in (straight, peek_small, peek_if_small, peek_chosen, peek_up):
        taken, paid = policy(small, COSTS, 1.0)
        assert (taken.tolist(), paid.tolist()) == ([0], pytest.approx([0.1]))


def test_what_was_begun_in_vain_is_paid_beside_the_answer() -> None:
    """The medium tier's beginning is paid as well where both have begun."""
    large = believed([0.5, 0.6, 0.7], [0.0, 0.0, 1.0])
    taken, paid = peek_small(large, COSTS, 0.5)
    assert (taken.tolist(), paid.tolist()) == ([2], pytest.approx([1.05]))
    taken, paid = peek_medium(believed([0.1, 0.6, 0.7], [0.0, 0.0, 1.0]), COSTS, 0.5)
    assert (taken.tolist(), paid.tolist()) == ([2], pytest.approx([1.15]))
    both = PeekBeliefs(large.before, np.array([[0.0, 0.8, 0.9]]), large.medium, large.both)
    taken, paid = peek_up(both, COSTS, 0.5)
    assert (taken.tolist(), paid.tolist()) == ([2], pytest.approx([1.2]))


def test_a_doubtful_answer_is_paid_whole_beside_the_next_one() -> None:
    sure, unsure = np.array([0.1]), np.array([0.9])
    small = believed([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
    assert doubtful(0.5, [sure, sure])(small, COSTS, 0.1)[0].tolist() == [0]
    taken, paid = doubtful(0.5, [unsure, sure])(small, COSTS, 0.1)
    assert (taken.tolist(), paid.tolist()) == ([1], pytest.approx([0.4]))
    assert doubtful(0.5, [unsure, sure])(small, COSTS, 2.0)[0].tolist() == [0], "not at that price"


@pytest.mark.parametrize("policy", [straight, *OF_SMALL.values(), *OF_BOTH.values()])
def test_a_curve_begins_with_the_small_tier_and_ends_with_the_large_one(policy: object) -> None:
    routed = route(policy, believed([0.5, 0.6, 0.7], [0.2, 0.4, 0.8]), COSTS, RIGHT)  # type: ignore[arg-type]
    assert routed.shares.shape == (len(PRICES) + 1, 3)
    assert (routed.shares[0].tolist(), routed.cost[0, 0], routed.right[0, 0]) == ([1, 0, 0], pytest.approx(0.1), 0.0)
    assert (routed.shares[-1].tolist(), routed.cost[-1, 0], routed.right[-1, 0]) == ([0, 0, 1], 1.0, 1.0)


def test_entropy_and_margin_are_those_of_the_distribution() -> None:
    """What is not among the likeliest tokens counts as one."""
    entry = TokenIdLogprob(7, math.log(0.5), [(7, math.log(0.5)), (8, math.log(0.25))])
    assert entropy(entry) == pytest.approx(0.5 * math.log(2) + 2 * 0.25 * math.log(4))
    assert margin(entry) == pytest.approx(0.25)


def test_signals_are_higher_where_an_answer_looks_better() -> None:
    good = TierEvidence(
        "q", "d", "small", [-0.1] * 3, [0.2] * 3, [0.9] * 3, ["It is Paris.", "it is paris"], (0.9, 0.9)
    )
    poor = TierEvidence("q", "d", "small", [-2.0] * 9, [3.0] * 9, [0.1] * 9, ["It is Rome.", "No idea"], (0.5, 0.5))
    ours, theirs = signals(good, 16), signals(poor, 16)
    assert all(ours[name] > theirs[name] for name in ours)
    assert agreement(good) == 1.0 > agreement(poor)
    assert signals(poor, 4)["brevity"] == -4
