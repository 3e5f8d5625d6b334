"""Keeps what `auto` spends at a share of what it would if the dearest tier answered everything.

The price of cost moves after every request: up where it cost more than its share, down where it cost less (dual mirror
descent, here with multiplicative steps, which need no scale: Balseiro, Lu, Mirrokni, "The Best of Many Worlds", 2023).
While the price is within its bounds, what was spent beyond the share is on average `log(last price / first price) /
(RATE * requests)`, whatever the traffic is. Each gateway has a budget of its own: if each keeps its share, so do all.
"""

from __future__ import annotations

import math

from msgspec import Struct

RATE = 0.05
LOWEST, HIGHEST = 1e-4, 1e3
HEAVY = 4.0
"""A single request moves the price as if it cost at most so many times the mean at the dearest tier."""


class Budget(Struct, frozen=True):
    """The price of cost, and what was spent so far."""

    share: float
    """Share of the dearest tier's cost that may be spent: above 0, up to 1."""
    price: float
    requests: int = 0
    spent: float = 0.0
    dearest: float = 0.0
    """What the dearest tier would have cost for the same requests."""

    @property
    def realised(self) -> float | None:
        """Share of the dearest tier's cost that was spent so far."""
        return self.spent / self.dearest if self.dearest else None


def charge(budget: Budget, spent: float, dearest: float) -> Budget:
    """Return the state after a request.

    Args:
        spent: what its answer cost.
        dearest: what the dearest tier is expected to have cost for it, in the same unit.
    """
    total = budget.dearest + dearest
    over, weight = 0.0, 0.0
    if dearest:
        over = spent / dearest - budget.share
        weight = min(HEAVY, dearest * (budget.requests + 1) / total)
    price = budget.price * math.exp(RATE * weight * over)
    return Budget(
        share=budget.share,
        price=min(HIGHEST, max(LOWEST, price)),
        requests=budget.requests + 1,
        spent=budget.spent + spent,
        dearest=total,
    )
