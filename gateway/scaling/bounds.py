"""How many engines a pool may have: what the configuration says, and what operators have set since. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.config.settings import PoolSettings
from gateway.records.directory import PoolControl
from scale.signals import PoolBounds


def effective(pool: PoolSettings, control: PoolControl | None) -> PoolBounds:
    """Return a pool's bounds.

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
