"""What a look at a pool tells the autoscaler, and the bounds that operators set. Plain data; see `scale/policy.py`.

Work is counted in *replica-seconds*: the time that one replica, loaded as it should be, spends on it
(`scale/capacity.py`). Work that arrives at a rate of seven replica-seconds a second keeps seven replicas busy.
"""

from __future__ import annotations

import enum
import math

from msgspec import Struct


class ReplicaPhase(enum.StrEnum):
    """The phases of a replica's life, in their order."""

    STARTING = "starting"
    """Asked for, and not ready yet."""
    READY = "ready"
    DRAINING = "draining"
    """Takes no new requests, ends those that it has, and goes."""


class PoolReplica(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One replica of a pool."""

    id: str
    phase: ReplicaPhase
    age: float
    """Seconds since this phase began."""
    in_flight: int = 0
    """Requests that run or wait there."""
    slots: int = 0
    """Most requests in one step; 0 while that is not known."""
    kv_share: float = 0.0
    """Share of the KV blocks that running requests use."""
    adapter_share: float = 0.0
    """Share of the memory for adapters that versions in use take."""
    unique_prefix: int = 0
    """Blocks of its prefix cache that no other replica holds."""
    spot: bool = False
    """Whether its machine may be taken away at short notice."""


class PoolSignal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pool at one time."""

    time: float
    """Seconds on a clock that all controllers share."""
    known: bool = True
    """Whether the figures are current. False: none was received, which is not the same as no traffic."""
    replicas: tuple[PoolReplica, ...] = ()
    offered: float = 0.0
    """Replica-seconds of work that arrived since the last look."""
    backlog: float = 0.0
    """Replica-seconds of the work of requests that wait."""
    waiting: int = 0
    """Requests that wait at engines or gateways."""
    wanted: int = 0
    """Turns that wait for a pool without replicas."""
    ttft_p95: float | None = None
    """Seconds, over the last minute; None without requests."""

    def of(self, phase: ReplicaPhase) -> list[PoolReplica]:
        return [each for each in self.replicas if each.phase is phase]


class PoolBounds(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator allows a pool."""

    min_replicas: int = 1
    """0 lets the pool sleep."""
    max_replicas: int = 1
    on_demand: int = 0
    """Fewest replicas on machines that are not taken away at short notice, unless the pool sleeps."""
    spare: int = 0
    """Replicas beyond what the work needs: 1 bears the loss of a replica."""
    budget: float | None = None
    """Most money per hour; draining replicas cost too. None: no limit."""
    price: float = 0.0
    """Money per replica and hour."""
    spot_price: float | None = None
    """The same for one on a spot machine; None: as for the others."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise ValueError("min_replicas must not be negative, nor above max_replicas")
        if self.max_replicas < 1 or self.spare < 0:
            raise ValueError("max_replicas must be at least 1, spare must not be negative")
        if not 0 <= self.on_demand <= self.max_replicas:
            raise ValueError("on_demand_replicas must not be negative, nor above max_replicas")
        if self.price < 0 or (self.budget is not None and self.price == 0):
            raise ValueError("price must not be negative, and positive where there is a budget")
        if self.spot_price is not None and self.spot_price <= 0:
            raise ValueError("spot_price must be positive")
        for name, least in (("min_replicas", self.min_replicas), ("on_demand_replicas", self.on_demand)):
            if self.affordable < least:
                raise ValueError(f"the budget pays {self.affordable} replicas, fewer than {name}")

    def price_of(self, *, spot: bool) -> float:
        """Return the money per hour of a replica on a spot machine, or on another one."""
        return self.spot_price if spot and self.spot_price is not None else self.price

    @property
    def affordable(self) -> float:
        """Return how many replicas may be paid at the same time."""
        return math.inf if self.budget is None else self.bought(self.budget, 0)

    def bought(self, money: float, staying: int) -> int:
        """Return how many replicas so much money an hour pays beside `staying` ones on machines that stay: first
        those that are missing of these, then spot machines."""
        missing = max(0, self.on_demand - staying)
        dear = min(missing, max(0, math.floor(money / self.price + 1e-9)))
        if dear < missing:
            return dear
        return dear + max(0, math.floor((money - dear * self.price) / self.price_of(spot=True) + 1e-9))
