"""Rules that others size a pool by, as they are used: stabilised over 300 s, as Kubernetes' autoscaler does it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from scale.fleet import Sizer
from scale.policy import PoolMemory, ScaleDecision, ScalePolicy, decide
from scale.signals import PoolBounds, PoolReplica, PoolSignal, ReplicaPhase

MOST = 60
"""Most replicas of a simulated pool."""
_TOLERANCE = 0.1
"""Relative distance from its target within which Kubernetes' autoscaler leaves a pool as it is."""
LOOK_SECONDS = 10.0

Wanted = Callable[[PoolSignal, float, list[PoolReplica]], float]
"""How many replicas a rule wants: of a signal, the busy share of ready replicas, and these."""


def by_work(utilisation: float, start_seconds: float) -> Sizer:
    """Return our own policy."""
    policy = ScalePolicy(utilisation=utilisation, start_seconds=start_seconds)
    bounds, memory = PoolBounds(max_replicas=MOST), PoolMemory()

    def sizer(signal: PoolSignal, busy: float) -> ScaleDecision:
        nonlocal memory
        decision, memory = decide(signal, memory, bounds, policy)
        return decision

    return sizer


def constant(replicas: float) -> Sizer:
    return lambda signal, busy: ScaleDecision(desired=round(replicas))


def by_in_flight(share: float) -> Sizer:
    """Requests in flight over the slots of a replica, as llm-d's autoscaler and KEDA's examples for it do."""
    return _stabilised(lambda signal, busy, ready: sum(each.in_flight / each.slots for each in ready) / share)


def by_waiting(each: float) -> Sizer:
    """KEDA on waiting requests."""
    return _stabilised(lambda signal, busy, ready: signal.waiting / each)


def by_busy(target: float) -> Sizer:
    """Kubernetes' autoscaler on the share of time for which devices are busy."""
    return _stabilised(lambda signal, busy, ready: len(ready) * busy / target, tolerance=_TOLERANCE)


def by_utilisation(target: float) -> Sizer:
    """Kubernetes' autoscaler on the share of their capacity that replicas use, averaged over a minute."""
    average: float | None = None

    def wanted(signal: PoolSignal, busy: float, ready: list[PoolReplica]) -> float:
        nonlocal average
        offered = signal.offered / LOOK_SECONDS
        average = offered if average is None else average + (offered - average) * LOOK_SECONDS / 60
        # A replica cannot be used for more than it can do.
        return min(average, float(len(ready))) / target

    return _stabilised(wanted, tolerance=_TOLERANCE)


def _stabilised(wanted: Wanted, tolerance: float = 0.0, seconds: float = 300.0) -> Sizer:
    """Return a sizer that shrinks a pool to the largest of the sizes that were wanted over a while."""
    window: deque[tuple[float, int]] = deque()

    def sizer(signal: PoolSignal, busy: float) -> ScaleDecision:
        ready = signal.of(ReplicaPhase.READY)
        present = len(ready) + len(signal.of(ReplicaPhase.STARTING))
        exact = wanted(signal, busy, ready)
        near = present and abs(exact / present - 1) <= tolerance
        target = present if near else min(max(1, math.ceil(exact - 1e-9)), MOST)
        window.append((signal.time, target))
        while window[0][0] <= signal.time - seconds:
            window.popleft()
        return sized(signal, max(size for _, size in window))

    return sizer


def sized(signal: PoolSignal, desired: int) -> ScaleDecision:
    """Return a decision that drains the ready replicas with the fewest requests, where there are too many."""
    ready = sorted(signal.of(ReplicaPhase.READY), key=lambda each: each.in_flight)
    return ScaleDecision(desired=desired, victims=tuple(each.id for each in ready[: max(0, len(ready) - desired)]))
