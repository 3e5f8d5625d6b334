"""What another model of success would have been worth on requests that were routed by this one, from their log.

A doubly robust estimate (Dudík, Langford and Li, ICML 2011): what is believed of the tiers that each model chooses,
corrected by how the tier that answered did, divided by the probability with which it was chosen. Its expectation is
right whatever is believed, because `router.explore` draws every tier now and then; beliefs only make it less noisy. Of
requests for which nothing could be drawn nothing follows, and they do not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, structs

from router.evaluation import Interval, Values, interval, resamples
from router.tier import TIERS, TierChoice, at_price

RESAMPLES = 1000
NEWEST = 200
"""Newest judged answers of a tier that are compared with those before."""
NOTICED = 3.5
"""Standard errors from which on a change counts: of tiers that stay the same, one in 2,000 seems to change so much."""


class JudgedAnswer(Struct, frozen=True):
    """An answer that somebody has judged."""

    choice: TierChoice
    """The decision by probabilities; its tier is the one that answered."""
    probabilities: tuple[float, float, float]
    """Probability that each tier answers well, by which it was chosen."""
    good: bool

    @property
    def tier(self) -> int:
        return TIERS.index(self.choice.tier)

    @property
    def explored(self) -> bool:
        """Whether any tier could have been drawn."""
        return self.choice.terms.explore > 0.0

    @property
    def surprise(self) -> float:
        """By how much the answer was better than expected."""
        return self.good - self.probabilities[self.tier]


def gain(answers: Sequence[JudgedAnswer], believed: Values) -> Interval | None:
    """Return how much better another model would have chosen: good answers less the price of their cost, per request.

    None: nothing was explored.

    Args:
        believed: probabilities by the other model, of shape (answers, tiers).
    """
    pairs = zip(answers, believed.tolist(), strict=True)
    gains = np.array([_gain(answer, tuple(other)) for answer, other in pairs if answer.explored])
    if not len(gains):
        return None
    drawn = resamples(len(gains), RESAMPLES)
    return interval(gains.mean(keepdims=True), drawn @ gains / len(gains))


def _gain(answer: JudgedAnswer, believed: tuple[float, float, float]) -> float:
    choice = answer.choice
    prediction = choice.outlook.prediction
    assert prediction is not None
    outlook = structs.replace(choice.outlook, prediction=structs.replace(prediction, probabilities=believed))
    price = choice.terms.price
    new, old = (TIERS.index(at_price(each, price)) for each in (structs.replace(choice, outlook=outlook), choice))
    charged = [value - utility for value, utility in zip(choice.values, choice.utilities, strict=True)]
    expected = (believed[new] - charged[new]) - (believed[old] - charged[old])
    surprise = (answer.good - believed[answer.tier]) / choice.propensity
    return expected + ((answer.tier == new) - (answer.tier == old)) * surprise


class Drift(Struct, frozen=True):
    """A tier whose newest answers are judged better or worse than those before, for what was expected of them."""

    tier: str
    before: float
    """Share of good answers less the share that was expected."""
    now: float


def drift(answers: Sequence[JudgedAnswer], newest: int = NEWEST) -> list[Drift]:
    """Return the tiers that have changed. What people who judge have in common cancels out, as they judged before, too.

    Args:
        answers: the oldest first.
    """
    found = []
    for number, tier in enumerate(TIERS):
        surprises = np.array([answer.surprise for answer in answers if answer.tier == number])
        before, now = surprises[:-newest], surprises[-newest:]
        if len(before) < newest:
            continue
        error = np.sqrt(before.var() / len(before) + now.var() / len(now))
        if abs(now.mean() - before.mean()) > NOTICED * error:
            found.append(Drift(tier, float(before.mean()), float(now.mean())))
    return found
