"""What the tiers came to in a choice, as clients are told it."""

from __future__ import annotations

import pytest

from router.options import options, read_options, write_options
from router.tier import TIERS, TierChoice, choose
from tests.router.test_tier import COSTS, MIDDLE, learnt, terms

QUEUES = (0.5, 0.0, 2.0)


def chosen(**changes: object) -> TierChoice:
    return choose(learnt(0.3, 0.6, 0.65), terms(delay_price=0.01), **{"delays": QUEUES, **changes})  # type: ignore[arg-type]


def test_the_terms_add_up_and_the_highest_total_is_chosen() -> None:
    found = options(chosen())
    assert [each.tier for each in found] == list(TIERS)
    assert [each.value for each in found] == [0.3, 0.6, 0.65]
    assert [each.cost for each in found] == pytest.approx([MIDDLE * cost for cost in COSTS])
    assert [each.queue for each in found] == pytest.approx([0.01 * queue for queue in QUEUES])
    assert [each.total for each in found] == pytest.approx([each.value - each.cost - each.queue for each in found])
    assert max(found, key=lambda each: each.total).chosen and sum(each.chosen for each in found) == 1


def test_a_tier_that_was_not_to_be_had_says_why() -> None:
    """It was not offered, the conversation is above it, or it did not answer, which may be so of the chosen one."""
    found = options(chosen(offered=("small", "large"), floor="large"), {"large": "is full", "medium": "is full"})
    assert [(each.tier, each.chosen, each.unavailable) for each in found] == [
        ("small", False, "is below the large tier, which the conversation has used"),
        ("medium", False, "is not open to this request"),
        ("large", True, "is full"),
    ]


def test_without_a_choice_there_are_none() -> None:
    assert options(None) == ()


def test_what_is_stored_with_an_answer_is_read_again() -> None:
    """What another release has written otherwise counts as nothing."""
    found = options(chosen())
    assert read_options(write_options(found)) == found
    assert (write_options(()), read_options("")) == ("", ())
    assert read_options('[["small"]]') == read_options("{") == ()
