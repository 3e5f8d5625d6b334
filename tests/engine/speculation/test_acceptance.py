"""A rate is what was seen, drawn to what all requests see while little was."""

from __future__ import annotations

import random

import pytest

from engine.speculation.acceptance import Acceptance, Tally


def feed(acceptance: Acceptance, own: Tally, rate: float, drafts: int, seed: int = 0, depth: int = 4) -> None:
    """Drafts whose tokens are right with this probability, one after the other."""
    generator = random.Random(seed)
    for _ in range(drafts):
        right = 0
        while right < depth and generator.random() < rate:
            right += 1
        acceptance.observe(own, depth, right)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 1.0])
def test_the_common_rate_is_that_of_the_tokens_that_were_checked(rate: float) -> None:
    acceptance = Acceptance()
    feed(acceptance, Tally(), rate, 1000)
    assert acceptance.rate(Tally()) == pytest.approx(rate, abs=0.1)


def test_a_request_that_differs_gets_a_rate_of_its_own() -> None:
    acceptance, easy, hard = Acceptance(), Tally(), Tally()
    for seed in range(100):
        feed(acceptance, easy, 0.95, 1, seed)
        feed(acceptance, hard, 0.1, 1, seed)
    assert acceptance.rate(easy) > 0.75
    assert acceptance.rate(hard) < 0.35
    assert acceptance.rate(hard) < acceptance.rate(Tally()) < acceptance.rate(easy)


def test_a_request_whose_text_changes_is_followed() -> None:
    acceptance, own = Acceptance(), Tally()
    feed(acceptance, own, 1.0, 50)
    feed(acceptance, own, 0.0, 50)
    assert acceptance.rate(own) < 0.25


def test_tokens_after_the_first_wrong_one_are_no_evidence() -> None:
    one, other = Tally(), Tally()
    one.add(8, 0)
    other.add(1, 0)
    assert one == other
