"""The search for the highest rate at which a server keeps its objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence

LOWEST = 1 / 64
"""Of the first rate: below it the search gives up."""


def next_rate(tried: Sequence[tuple[float, bool]], first: float, most: float, precision: float) -> float | None:
    """Return the rate to try next; None when the answer is known.

    Doubles until the objectives are missed, halves until they are met, then takes the geometric mean of the two rates
    between which the answer lies, until one exceeds the other by no more than `precision` (0.1: 10 %).

    Args:
        tried: rates, and whether each met the objectives.
        first: the rate to begin with.
        most: no rate is higher.
    """
    if not tried:
        return min(first, most)
    met, missed = bracket(tried)
    if missed is None:
        assert met is not None
        return None if met >= most else min(2 * met, most)
    if met is None:
        return None if missed <= first * LOWEST else missed / 2
    return None if missed / met <= 1 + precision else math.sqrt(met * missed)


def bracket(tried: Sequence[tuple[float, bool]]) -> tuple[float | None, float | None]:
    """Return the highest rate that met the objectives, of those below every missed one, and the lowest that missed."""
    missed = min((rate for rate, good in tried if not good), default=None)
    met = max((rate for rate, good in tried if good and (missed is None or rate < missed)), default=None)
    return met, missed
