"""How many replicas a budget pays, where those on spot machines have a price of their own. Pure."""

from __future__ import annotations

import math

from scale.signals import PoolBounds, PoolSignal, ReplicaPhase


def payable(signal: PoolSignal, bounds: PoolBounds) -> float:
    """Return how many replicas may be ready or start: those that are, as far as the budget pays them, and as many more
    as it pays beside them and those that drain."""
    if bounds.budget is None:
        return math.inf
    ready, starting = signal.of(ReplicaPhase.READY), len(signal.of(ReplicaPhase.STARTING))
    staying = sum(not each.spot for each in ready)
    # On which machine one starts is not known yet; those that are to stay are asked for first.
    staying += min(starting, max(0, bounds.on_demand - staying))
    others = len(ready) + starting - staying
    room, price = bounds.budget - staying * bounds.price, bounds.price_of(spot=True)
    if room < others * price - 1e-9:
        kept = min(staying, math.floor(bounds.budget / bounds.price + 1e-9))
        return kept + max(0, math.floor(room / price + 1e-9))
    drained = sum(bounds.price_of(spot=each.spot) for each in signal.of(ReplicaPhase.DRAINING))
    return staying + others + bounds.bought(room - others * price - drained, staying)
