"""Sums of logged decisions, and the same decisions at another position of the knob."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.config.settings import PriceSettings
from gateway.pipeline.routing.decisions import DecisionLog, LoggedDecision, newest
from gateway.pipeline.routing.replaying import replay
from router.success import Basis, Prediction
from router.tier import NEVER, Outlook, Terms, ValueSource, at_price, choose

COSTS = (0.1, 0.3, 1.0)
PRICES = {
    "small": PriceSettings(name="s", input=1_000_000, output=2_000_000),
    "large": PriceSettings(name="l", input=10_000_000, output=20_000_000),
}


def decision(number: int, *probabilities: float, at: int = 0, answered: str = "", **changes: Any) -> LoggedDecision:
    """A decision at the price 0.2 by these probabilities; of ten tokens read and five written."""
    small, medium, large = probabilities
    outlook = Outlook(ValueSource.LEARNT, 0.5, Prediction((small, medium, large), Basis.EMBEDDING, 0.5))
    choice = choose(outlook, Terms(0.2, 0.2, COSTS, 0.1, changes.pop("explore", 0.0)), **changes)
    return LoggedDecision(
        response=f"resp_{number:048x}",
        at=at or number,
        choice=choice,
        features={},
        model="m",
        tier=answered or choice.tier,
        input_tokens=10,
        output_tokens=5,
        outcome="stop",
    )


EASY, HARD = (0.9, 0.9, 0.9), (0.1, 0.2, 0.9)


def test_decisions_are_summed_by_the_tier_that_answered() -> None:
    """Another one than the chosen, where that was down; what has no price has no cost."""
    found = [decision(3, *HARD), decision(2, *HARD, answered="medium"), decision(1, *EASY), decision(0, *EASY, at=1)]
    summed = replay(found, None, PRICES)
    assert (summed.decisions, summed.since, summed.until) == (4, 1, 3)
    assert (summed.otherwise, summed.changed) == (None, None)
    shown = {each.tier: (each.decisions, each.share, each.input_tokens, each.output_tokens) for each in summed.answered}
    assert shown == {"small": (2, 0.5, 20, 10), "medium": (1, 0.25, 10, 5), "large": (1, 0.25, 10, 5)}
    costs = {each.tier: each.cost_microdollars for each in summed.answered}
    assert costs == {"small": 40, "medium": None, "large": 200}


def test_another_position_of_the_knob_moves_the_same_tokens() -> None:
    """To the cheapest tier where cost alone counts; to the best where it has no price. Nothing is drawn at random."""
    found = [decision(3, *HARD), decision(2, *EASY, draw=0.15, explore=0.3), decision(1, *EASY)]
    assert [each.tier for each in found] == ["large", "medium", "small"]
    cheapest, best = (replay(found, partial(at_price, price=price), PRICES) for price in (NEVER, 0.0))
    assert cheapest.otherwise is not None and best.otherwise is not None
    assert [(each.tier, each.input_tokens) for each in cheapest.otherwise] == [("small", 30)]
    assert [(each.tier, each.input_tokens) for each in best.otherwise] == [("large", 30)]
    assert (cheapest.changed, best.changed) == (2, 2)
    assert cheapest.answered == best.answered == replay(found, None, PRICES).answered


def test_reasons_are_counted() -> None:
    """A decision may have several."""
    kept = decision(1, *EASY, floor="medium")
    queued = decision(2, *HARD, delays=(0.0, 0.0, 9.0))
    summed = replay([decision(3, *EASY, draw=0.15, explore=0.3), queued, kept, decision(0, *HARD)], None, {})
    assert summed.reasons == {"explored": 1, "learnt": 3, "queue": 1, "conversation": 1}


def test_nothing_is_summed_of_an_empty_log() -> None:
    empty = replay([], partial(at_price, price=0.2), PRICES)
    assert (empty.decisions, empty.since, empty.until, empty.changed) == (0, None, None, 0)
    assert empty.answered == empty.otherwise == []


@pytest.mark.anyio
async def test_the_newest_decisions_of_several_tenants_come_in_order(redis_url: str) -> None:
    """However they are spread over tenants, and however few are read at once."""
    generator = random.Random(7)
    every = [decision(number, *EASY, at=number + 1) for number in range(120)]
    async with Redis.from_url(redis_url) as redis:
        log = DecisionLog(redis)
        for each in every:
            log.add(generator.choice(["one", "two", "two", "two"]), each, keep=1000)
        await log.flush()
        for count in (1, 15, 119, 500):
            assert await newest(redis, ["one", "two", "empty"], count) == every[::-1][:count]
        assert await newest(redis, [], 5) == []
