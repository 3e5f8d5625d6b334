"""How many engines a pool may have: what the configuration says, at some times, and what operators have set since.
Pure."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.config.settings import PoolSettings
from gateway.records.directory import PoolControl
from scale.signals import PoolBounds


def effective(pool: PoolSettings, control: PoolControl | None) -> PoolBounds:
    """Return a pool's bounds outside of all windows.

    Raises:
        ValueError: what operators have set does not go together with the configuration.
    """
    bounds = pool.bounds
    if control is None:
        return bounds
    low = bounds.min_replicas if control.min_replicas is None else control.min_replicas
    high = bounds.max_replicas if control.max_replicas is None else control.max_replicas
    if low == 0 < pool.min_replicas:
        raise ValueError("it may not sleep: set min_replicas = 0 in the configuration, so that gateways hold its turns")
    return replace(bounds, min_replicas=low, max_replicas=high)


def effective_at(pool: PoolSettings, control: PoolControl | None, at: float) -> PoolBounds:
    """Return a pool's bounds at a time in seconds since 1970. What operators have set goes before its windows.

    Raises:
        ValueError: as `effective`.
    """
    bounds, window = effective(pool, control), pool.bounds_at(at)
    if control is None:
        return window
    low = window.min_replicas if control.min_replicas is None else bounds.min_replicas
    if control.max_replicas is not None:
        return replace(bounds, min_replicas=min(low, bounds.max_replicas))
    return replace(bounds, min_replicas=low, max_replicas=max(low, window.max_replicas))
