"""What the opinions of a judge are worth: of a model that is asked which of two tiers has answered a request better.

It is asked twice, with either answer first, because models favour a place: if it does not name the same answer both
times, it has no opinion. Models favour length and what reads like their own writing, too, which no order cancels. So
people decide whether a judge may teach: of answers that both have compared, it has to agree with them more often,
beyond chance, than every rule that reads nothing (`RULES`) does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from msgspec import Struct

from router.evaluation import Interval, interval, resamples
from router.tier import TIERS, TierChoice

FEWEST = 50
"""Fewest pairs of answers that a person and a judge have compared before the judge may teach."""
RESAMPLES = 1000
RULES = ("the larger tier", "the smaller tier", "the longer answer", "the shorter answer")
"""What could be named without reading either answer."""


class TwicePair(Struct, frozen=True):
    """Two answers of which a person and a judge have both named one. 1 stands for that of the larger tier, -1 for the
    other."""

    person: int
    judge: int
    longer: int
    """Which is longer; 0 if neither."""


class Trust(Struct, frozen=True):
    """How often a judge agrees with people, and what its opinions count."""

    pairs: int
    """Pairs of answers that both have compared."""
    agreement: Interval
    """Share of these in which they agree."""
    rule: str
    """The rule that agrees with people most, of `RULES`."""
    ahead: Interval
    """By how much the judge agrees more than that rule."""

    @property
    def established(self) -> bool:
        return self.pairs >= FEWEST and self.ahead.low > 0.0 and self.agreement.low > 0.5

    @property
    def weight(self) -> float:
        """What one of its opinions counts beside a person's; 0 while it is not established.

        Of which of two like answers is better, a witness who is right with probability a tells (2a - 1)^2 of what one
        tells who is always right; a is the lower end of the interval.
        """
        return (2.0 * self.agreement.low - 1.0) ** 2 if self.established else 0.0


def trust(pairs: Sequence[TwicePair]) -> Trust:
    """Return what a judge's opinions count, by the pairs that people have compared as well."""
    if not pairs:
        return Trust(0, Interval(math.nan, 0.0, 1.0), RULES[0], Interval(math.nan, -1.0, 1.0))
    person, judge, longer = (np.array(column) for column in zip(*map(_columns, pairs), strict=True))
    agreed = (judge == person).astype(np.float64)
    larger = (person == 1).astype(np.float64)
    long = np.where(longer == 0, 0.5, longer == person)
    rules = np.stack([larger, 1.0 - larger, long, 1.0 - long])
    best = int(rules.mean(axis=1).argmax())
    more, drawn = agreed - rules[best], resamples(len(pairs), RESAMPLES)
    return Trust(
        pairs=len(pairs),
        agreement=_wilson(float(agreed.mean()), len(pairs)),
        rule=RULES[best],
        ahead=interval(more.mean(keepdims=True), drawn @ more / len(pairs)),
    )


def opponent(choice: TierChoice, others: Collection[str]) -> str | None:
    """Return the tier whose answer is compared with that of the chosen one: of these, the one that comes next."""
    open_tiers = [tier for tier in others if tier in choice.offered and tier != choice.tier]
    return max(open_tiers, key=lambda tier: choice.utilities[TIERS.index(tier)], default=None)


def _columns(pair: TwicePair) -> tuple[int, int, int]:
    return pair.person, pair.judge, pair.longer


def _wilson(share: float, trials: int, z: float = 1.96) -> Interval:
    """Return a share with Wilson's 95 % interval."""
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    middle, scale = share + z * z / (2 * trials), 1 + z * z / trials
    return Interval(share, (middle - spread) / scale, (middle + spread) / scale)
