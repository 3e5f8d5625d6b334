"""Decides how many replicas a pool has. Pure: a signal and what was remembered in, a decision with reasons out.

The work that arrives, in replica-seconds a second, is the number of replicas that it keeps busy (Little's law):

    offered = max(EWMA over 20 s, over 120 s) + trend * start / 2 + backlog / 60 s
    target  = max(ceil(offered / busy + sqrt(offered) / 2) + spare, slot floor, KV floor, adapter floor, min_replicas)

The square root is the staffing rule for random arrivals (Halfin and Whitt, 1981). The trend is that of the last minutes
or, if it is the larger one and has been right of late, that of yesterday (`scale/seasons.py`). Then:

* TTFT above its aim for a minute in which no replica starts adds one; below it, these go again one by one.
* A pool shrinks to the largest target of the last 300 s, and only if the replicas that stay hold what is in flight.
* Without a signal it stays as it is; without traffic it shrinks. They are not the same.
* Replicas that start count. If none becomes ready for three times the time of a start, the target falls back to one
  more than there are, until one comes.
* The budget is applied before anything is asked for; draining replicas are paid, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from scale.money import payable
from scale.reasons import Figure, ScaleReason, ScaleReasonKind
from scale.seasons import Season, observe, ratio
from scale.signals import PoolBounds, PoolReplica, PoolSignal, ReplicaPhase

AVERAGED_SECONDS = (20.0, 120.0, 600.0)
_LARGEST_EXTRA = 4
"""Part of a pool that replicas added because of TTFT may be."""


class ScalePolicy(Struct, frozen=True, kw_only=True):
    """Parameters of the decision; bench/README.md says how they were chosen."""

    start_seconds: float = 180.0
    """Time from asking for a replica until it is ready."""
    utilisation: float | None = None
    """Share of the replicas that the work keeps busy in the mean; None: `busy_share` says it."""
    margin: float = 0.5
    """Replicas beyond that, times the square root of the work."""
    backlog_seconds: float = 60.0
    """Time in which waiting work is to be worked off."""
    ttft_target: float = 2.0
    """Aim for the 95th percentile of the TTFT, in seconds."""
    ttft_patience: float = 60.0
    """Seconds over that aim, while no replica starts, that add one."""
    kv_share: float = 0.85
    """Most of the KV blocks and of the memory for adapters that are to be in use."""
    hold_seconds: float = 300.0
    """Time over whose largest target a pool shrinks."""
    in_flight_share: float = 0.9
    """Most of the slots that requests in flight are to take."""
    sleep_seconds: float = 600.0
    """Time without a request after which a pool whose `min_replicas` is 0 has none."""
    patience: int = 3
    """Number of times `start_seconds` without a replica becoming ready after which the target falls back."""

    @property
    def busy_share(self) -> float:
        """Return `utilisation`: by default 0.9 for starts of 30 s, 0.85 for those of 180 s, a line between them."""
        if self.utilisation is not None:
            return self.utilisation
        return 0.9 - 0.05 * min(max(0.0, (self.start_seconds - 30) / 150), 1.0)


class PoolMemory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the policy remembers of a pool from one look to the next. Plain data, to be stored by the controller."""

    time: float | None = None
    """Time of the last look with a signal; None before the first one."""
    ewmas: tuple[float, ...] = ()
    """Offered work in replicas, averaged over each of `AVERAGED_SECONDS`; none before the second look."""
    desired: int | None = None
    """Last decision; None before the first one."""
    targets: tuple[tuple[float, int], ...] = ()
    """Times and targets of the last `hold_seconds`, without those that a later one exceeds."""
    active: float | None = None
    """Last time with a request; None: there was none yet."""
    slow_since: float | None = None
    """Time since which TTFT is above its aim, or since the last replica that this added."""
    fast_since: float | None = None
    """Time since which it is below, or since the last one that went again."""
    extra: int = 0
    """Replicas added because of TTFT."""
    season: Season = Season()
    """Yesterday's work."""
    ready: int = 0
    """Ready replicas at the last look."""
    short_since: float | None = None
    """Time since which fewer are ready than desired and none became so."""


class ScaleDecision(Struct, frozen=True, kw_only=True):
    """What an actuator has to reach."""

    desired: int
    """Number of replicas that are ready or start. If more start than that leaves, the youngest are given up."""
    victims: tuple[str, ...] = ()
    """Ids of ready replicas to be drained now."""
    reasons: tuple[ScaleReason, ...] = ()
    """In the order in which they applied."""
    offered: float = 0.0
    """Replicas that the work keeps busy, as the decision saw it."""


def decide(
    signal: PoolSignal, memory: PoolMemory, bounds: PoolBounds, policy: ScalePolicy | None = None
) -> tuple[ScaleDecision, PoolMemory]:
    """Return a pool's size and what to remember for the next look, which is due in about 10 s."""
    policy = policy or ScalePolicy()
    ready, starting = signal.of(ReplicaPhase.READY), signal.of(ReplicaPhase.STARTING)
    present = len(ready) + len(starting)
    if not signal.known or (memory.time is not None and signal.time <= memory.time):
        return _hold(signal, memory, bounds)
    reasons: list[ScaleReason] = []
    memory = _observe(signal, memory, present, policy)
    offered = _offered(signal, memory, policy)
    target = _target(signal, ready, memory, bounds, policy, offered, reasons)
    targets = _window(memory.targets, signal.time, target, policy.hold_seconds)
    desired = max(size for _, size in targets)
    if desired > target:
        held = {"target": desired, "seconds": round(policy.hold_seconds)}
        reasons.append(ScaleReason(ScaleReasonKind.HOLD, held))
    desired = _bounded(desired, bounds, reasons)
    desired, short_since = _fallback(signal, desired, memory, bounds, policy, reasons)
    paid = payable(signal, bounds)
    desired = _within_budget(desired, paid, signal, bounds, reasons)
    victims = _victims(ready, len(ready) - desired, len(ready) - min(bounds.max_replicas, paid), policy)
    if len(victims) < len(ready) - desired:
        desired = len(ready) - len(victims)
        reasons.append(ScaleReason(ScaleReasonKind.SURVIVORS, {"replicas": desired}))
    memory = replace(memory, targets=targets, desired=desired, ready=len(ready), short_since=short_since)
    return ScaleDecision(desired=desired, victims=victims, reasons=tuple(reasons), offered=offered), memory


def _hold(signal: PoolSignal, memory: PoolMemory, bounds: PoolBounds) -> tuple[ScaleDecision, PoolMemory]:
    """Keep the size that there is, as far as bounds and budget allow."""
    present = len(signal.replicas) - len(signal.of(ReplicaPhase.DRAINING))
    reasons = [ScaleReason(ScaleReasonKind.NO_SIGNAL, alert=True)]
    desired = _bounded(present if memory.desired is None else memory.desired, bounds, reasons)
    desired = _within_budget(desired, payable(signal, bounds), signal, bounds, reasons)
    return ScaleDecision(desired=desired, reasons=tuple(reasons)), replace(memory, desired=desired)


def _observe(signal: PoolSignal, memory: PoolMemory, present: int, policy: ScalePolicy) -> PoolMemory:
    """Add a look's figures to what is remembered."""
    now = signal.time
    in_use = signal.offered > 0 or signal.waiting or signal.wanted or any(each.in_flight for each in signal.replicas)
    active = now if in_use or (memory.time is None and present) else memory.active
    slow = signal.ttft_p95 is not None and signal.ttft_p95 > policy.ttft_target
    slow_since = (memory.slow_since if memory.slow_since is not None else now) if slow else None
    fast_since = None if slow or not memory.extra else (memory.fast_since if memory.fast_since is not None else now)
    extra = memory.extra
    if slow_since is not None and signal.of(ReplicaPhase.STARTING):
        slow_since = now
    if slow_since is not None and now - slow_since >= policy.ttft_patience:
        # Prompts that alone take longer than the aim must not let a pool grow without end.
        extra, slow_since = min(extra + 1, max(1, (memory.desired or 0) // _LARGEST_EXTRA)), now
    if fast_since is not None and now - fast_since >= policy.hold_seconds:
        extra, fast_since = extra - 1, now
    if memory.time is None:
        # What was decided before is not known: the pool does not shrink before `hold_seconds` have passed.
        return replace(memory, time=now, active=active, slow_since=slow_since, targets=((now, present),))
    passed = now - memory.time
    rate = signal.offered / passed

    before = memory.ewmas or (rate,) * len(AVERAGED_SECONDS)
    ewmas = tuple(
        rate + (value - rate) * math.exp(-passed / seconds)
        for value, seconds in zip(before, AVERAGED_SECONDS, strict=True)
    )
    return replace(
        memory,
        time=now,
        ewmas=ewmas,
        season=observe(memory.season, now, rate),
        active=active,
        slow_since=slow_since,
        fast_since=fast_since,
        extra=extra,
    )


def _offered(signal: PoolSignal, memory: PoolMemory, policy: ScalePolicy) -> float:
    """Return how many replicas the work keeps busy, when replicas that start now are ready."""
    backlog = signal.backlog / policy.backlog_seconds
    if not memory.ewmas:
        return backlog
    fast, middle, slow = memory.ewmas
    # An average over t seconds lags a ramp by t seconds.
    trend = (middle - slow) / (AVERAGED_SECONDS[2] - AVERAGED_SECONDS[1])
    level = max(fast, middle)
    seasonal = level * (ratio(memory.season, policy.start_seconds) - 1)
    return level + max(0.0, trend * policy.start_seconds / 2, seasonal) + backlog


def _target(
    signal: PoolSignal,
    ready: Sequence[PoolReplica],
    memory: PoolMemory,
    bounds: PoolBounds,
    policy: ScalePolicy,
    offered: float,
    reasons: list[ScaleReason],
) -> int:
    idle = math.inf if memory.active is None else signal.time - memory.active
    if idle >= policy.sleep_seconds and not bounds.min_replicas:
        reasons.append(ScaleReason(ScaleReasonKind.ASLEEP, {} if idle == math.inf else {"seconds": round(idle)}))
        return 0
    sized = max(1, math.ceil(offered / policy.busy_share + policy.margin * math.sqrt(offered) - 1e-9)) + bounds.spare
    spare = {"spare": bounds.spare} if bounds.spare else {}
    reasons.append(ScaleReason(ScaleReasonKind.LOAD, {"offered": round(offered, 1), "sized": sized, **spare}))
    if signal.wanted and not ready:
        reasons.append(ScaleReason(ScaleReasonKind.WAKING, {"turns": signal.wanted}))
    target = sized
    slots = [min(1.0, each.in_flight / each.slots) for each in ready if each.slots]
    for kind, shares, most in (
        (ScaleReasonKind.SLOTS, slots, policy.in_flight_share),
        (ScaleReasonKind.KV, [each.kv_share for each in ready], policy.kv_share),
        (ScaleReasonKind.ADAPTERS, [each.adapter_share for each in ready], policy.kv_share),
    ):
        floor = math.ceil(sum(shares) / most - 1e-9)
        if floor > target:
            target = floor
            reasons.append(ScaleReason(kind, {"replicas": floor, "percent": round(100 * most)}))
    if memory.extra:
        target += memory.extra
        reasons.append(ScaleReason(ScaleReasonKind.TTFT, {"extra": memory.extra, "aim": policy.ttft_target}))
    return target


def _bounded(target: int, bounds: PoolBounds, reasons: list[ScaleReason]) -> int:
    least = max(bounds.min_replicas, bounds.on_demand if target else 0)
    bounded = min(max(target, least), bounds.max_replicas)
    if bounded != target:
        lower = "min_replicas" if least == bounds.min_replicas else "on_demand_replicas"
        bound = "max_replicas" if bounded < target else lower
        figures: dict[str, Figure] = {"bound": bound, "limit": bounded, "target": target}
        reasons.append(ScaleReason(ScaleReasonKind.BOUNDS, figures, alert=bounded < target))
    return bounded


def _window(
    targets: Sequence[tuple[float, int]], now: float, target: int, seconds: float
) -> tuple[tuple[float, int], ...]:
    """Return the targets that may be the largest of a window, the new one last."""
    return (*((at, size) for at, size in targets if at > now - seconds and size > target), (now, target))


def _fallback(
    signal: PoolSignal,
    desired: int,
    memory: PoolMemory,
    bounds: PoolBounds,
    policy: ScalePolicy,
    reasons: list[ScaleReason],
) -> tuple[int, float | None]:
    """Give up a target that is not met for long; return the desired size and the time since which it is not met."""
    ready = len(signal.of(ReplicaPhase.READY))
    if desired <= ready:
        return desired, None
    since = memory.short_since if memory.short_since is not None and ready <= memory.ready else signal.time
    least = max(ready + 1, bounds.min_replicas, bounds.on_demand)
    if signal.time - since < policy.patience * policy.start_seconds or desired <= least:
        return desired, since
    figures = {"seconds": round(signal.time - since), "least": least, "target": desired}
    reasons.append(ScaleReason(ScaleReasonKind.STUCK, figures, alert=True))
    return least, since


def _within_budget(
    desired: int, paid: float, signal: PoolSignal, bounds: PoolBounds, reasons: list[ScaleReason]
) -> int:
    """Apply the budget, which pays so many replicas beside those that drain."""
    if paid >= desired:
        return desired
    draining = len(signal.of(ReplicaPhase.DRAINING))
    assert bounds.budget is not None  # without one, any number is paid
    beside = {"draining": draining} if draining else {}
    reasons.append(ScaleReason(ScaleReasonKind.BUDGET, {"budget": bounds.budget, "paid": paid, **beside}, alert=True))
    return int(paid)


def _victims(ready: Sequence[PoolReplica], count: int, forced: float, policy: ScalePolicy) -> tuple[str, ...]:
    """Choose replicas to drain, at most `count`: `forced` ones, and more while the others hold what is in flight.

    Spot machines go first, so that those that stay are left, of those the ones with the fewest requests, then with the
    fewest blocks of their own.
    """
    order = sorted(ready, key=lambda each: (not each.spot, each.in_flight, each.unique_prefix, each.id))
    in_flight = sum(each.in_flight for each in ready)
    kv = sum(each.kv_share for each in ready)
    slots = sum(each.slots for each in ready)
    victims: list[str] = []
    for each in order[: max(0, count)]:
        slots -= each.slots
        held = in_flight <= policy.in_flight_share * slots and kv <= policy.kv_share * (len(ready) - len(victims) - 1)
        if not held and len(victims) >= forced:
            break
        victims.append(each.id)
    return tuple(victims)
