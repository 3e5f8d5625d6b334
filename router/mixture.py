"""Deals requests to tiers in fixed shares, for pools of which nothing is learnt.

Up to what all-medium costs, requests are dealt to small and medium, beyond it to medium and large. That is better than
a coin between small and large where each further unit of cost gains less, as with all three tiers that were measured
(`bench/results/router.md`, `bench/results/router-real.md`).

Every request has a lot, a number that is uniform over requests and the same whenever the request comes again. It adds
to the price of cost what `step` says, so that tiers are dealt out by the same sum of value and cost that chooses among
learnt values: queues, floors and budgets count alike. Values are assumptions, the same for all requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

ASSUMED_RIGHT = 0.4
"""Assumed probability that the small tier answers well."""
ASSUMED_GAIN = 0.3
"""Assumed gain of the large tier over the small one. It decides what a queue counts, not who gets which tier."""

Costs = tuple[float, float, float]


def step(costs: Costs) -> float:
    """Return the gain of the large tier over the medium one per unit of cost; medium gains twice as much over small.

    Args:
        costs: of a token at each tier, relative to the dearest.
    """
    small, medium, large = costs
    return ASSUMED_GAIN / (2 * (medium - small) + (large - medium))


def values(costs: Costs) -> Costs:
    """Return the assumed probability that each tier answers well."""
    second = ASSUMED_RIGHT + 2 * step(costs) * (costs[1] - costs[0])
    return ASSUMED_RIGHT, second, ASSUMED_RIGHT + ASSUMED_GAIN


def prices(costs: Costs, never: float) -> tuple[float, ...]:
    """Return the price of cost at each position of the quality knob, 0 to 100: at position q a mixture costs all-small
    plus q % of what all-large costs more.

    Args:
        never: price at which only the cheapest tier is taken.
    """
    small, _, large = costs
    spent = small + np.linspace(0, 1, 101) * (large - small)
    table = step(costs) * np.interp(spent, costs, (2.0, 1.0, 0.0))
    table[0] = never
    return tuple(float(price) for price in table)


def alike(price: float, table: Sequence[float], other: Sequence[float]) -> float:
    """Return the price of one table of the knob at which as much is spent as at a price of another one.

    Args:
        table: the prices that `price` is of, by position of the knob, falling.
        other: the prices that the result is of.
    """
    if price >= table[1]:
        return other[0] if price >= table[0] else other[1] * price / table[1]
    positions = np.arange(1, len(table))
    position = np.interp(price, table[:0:-1], positions[::-1])
    return float(np.interp(position, positions, other[1:]))


def lot(*parts: bytes) -> float:
    """Return the lot of a request: a hash of what it is known again by, from 0 to below 1."""
    digest = hashlib.blake2b(digest_size=7, person=b"rh lot")
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(digest.digest(), "little") / 2**56


def shares(first: Sequence[float], last: Sequence[float], open_tiers: Sequence[int]) -> dict[int, float]:
    """Return the share of lots for which each open tier has the highest utility.

    Args:
        first, last: utilities of all tiers at lot 0 and lot 1, between which they are linear.
    """
    found = {}
    for tier in open_tiers:
        low, high = 0.0, 1.0
        for other in open_tiers:
            ahead = first[tier] - first[other]
            change = last[tier] - last[other] - ahead
            if change > 0:
                low = max(low, -ahead / change)
            elif change < 0:
                high = min(high, -ahead / change)
            elif ahead < 0:
                high = 0.0
        found[tier] = max(0.0, high - low)
    return found
