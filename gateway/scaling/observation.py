"""Makes the autoscaler's signal of a pool from what its engines and its actuator tell, and from the last look. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from engine.registration import TTFT_BOUNDS, Lease, Work
from gateway.scaling.actuator import StartedReplica
from scale.capacity import YOUNG, Capacity, MeasuredStep, fit, learn
from scale.signals import PoolReplica, PoolSignal, ReplicaPhase

IN_FLIGHT_SHARE = 0.75
"""Share of an engine's slots that requests in flight are to take, where the cost of work is not known."""
KV_SHARE = 0.85
"""Share of the KV blocks that running requests are to take."""
ENOUGH_STEPS = 20
"""Steps of an engine between two looks of which the mean says something."""
ENOUGH_MEANS = 3
"""Means of different size from which the cost of work is known."""
TTFT_SECONDS = 60.0
"""Seconds over which first tokens count."""
SILENT_SECONDS = 60.0
"""Seconds after which engines without a lease are gone; before that, nothing is known of them."""
LATE_SECONDS = 15.0
"""Seconds in which a ready engine must have written its first lease."""
_BUCKETS = len(TTFT_BOUNDS) + 1
_SMOOTHING = 0.2
"""Weight of the newest look in the mean length of answers."""


class SeenEngine(Struct, frozen=True, array_like=True):
    """What is remembered of an engine."""

    phase: ReplicaPhase
    since: float
    """When this phase was first seen."""
    seen: float
    """When it was last seen."""
    work: Work | None = None


class PoolHistory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is remembered of a pool from one look to the next."""

    time: float | None = None
    engines: dict[str, SeenEngine] = {}
    steps: tuple[MeasuredStep, ...] = ()
    """Means of steps of each size that was seen."""
    first_tokens: tuple[tuple[float, tuple[int, ...]], ...] = ()
    """Requests by their TTFT, in the buckets of `TTFT_BOUNDS`, of each look of the last `TTFT_SECONDS`."""
    answer_tokens: float = 0.0
    """Mean length of answers."""


class PoolLook(Struct, frozen=True, kw_only=True):
    """What was read of a pool at one time."""

    time: float
    """Seconds since 1970."""
    leases: Sequence[Lease]
    started: Sequence[StartedReplica] = ()
    """Engines of its actuator, or that are asked for."""
    acted: bool = False
    """Whether an actuator knows which engines there are."""
    wanted: int = 0
    """Turns that wait for it."""


def observe(look: PoolLook, history: PoolHistory) -> tuple[PoolSignal, PoolHistory]:
    """Return the signal of a look, and what to remember of it."""
    now = look.time
    replicas = _replicas(look, history)
    leases = {lease.id: lease for lease in look.leases}
    done = _done(leases, history)
    ready = [leases[each.id] for each in replicas if each.phase is ReplicaPhase.READY and each.id in leases]
    passed = 0.0 if history.time is None else max(0.0, now - history.time)
    history = _learn(done, replicas, look, history)
    capacity = _capacity(history.steps, ready)
    waiting = sum(lease.waiting for lease in look.leases)
    signal = PoolSignal(
        time=now,
        known=not _silent(look, history, replicas),
        replicas=tuple(replicas),
        offered=_offered(done, capacity, ready, passed),
        backlog=0.0 if capacity is None else _backlog(look.leases, waiting, capacity, history.answer_tokens),
        waiting=waiting,
        wanted=look.wanted,
        ttft_p95=percentile(history.first_tokens, 0.95),
    )
    return signal, history


def _replicas(look: PoolLook, history: PoolHistory) -> list[PoolReplica]:
    """Return all replicas: by their leases, and those that have none yet by their actuator."""
    ids = {lease.id for lease in look.leases}
    draining = {each.id for each in look.started if each.state == "draining"}
    found = []
    for lease in look.leases:
        if lease.state == "asleep":
            continue
        phase = ReplicaPhase.DRAINING if lease.state == "draining" or lease.id in draining else ReplicaPhase.READY
        before = history.engines.get(lease.id)
        since = before.since if before is not None and before.phase is phase else look.time
        found.append(
            PoolReplica(
                id=lease.id,
                phase=phase,
                age=look.time - since,
                in_flight=lease.load,
                slots=lease.capacity,
                kv_share=lease.kv_share,
                adapter_share=lease.adapter_share,
                spot=lease.spot,
            )
        )
    for each in look.started:
        if each.state != "failed" and (not each.id or each.id not in ids):
            phase = ReplicaPhase.DRAINING if each.state == "draining" else ReplicaPhase.STARTING
            found.append(PoolReplica(id=each.name, phase=phase, age=max(0.0, look.time - each.since)))
    return found


def _done(leases: Mapping[str, Lease], history: PoolHistory) -> dict[str, Work]:
    """Return what each engine has done since the last look. Of one that was not seen before, nothing is known."""
    done = {}
    for id, lease in leases.items():
        before = history.engines.get(id)
        if lease.work is None or len(lease.work.first_tokens) != _BUCKETS or before is None or before.work is None:
            continue
        if (work := difference(lease.work, before.work)) is not None:
            done[id] = work
    return done


def difference(now: Work, before: Work) -> Work | None:
    """Return what was done between two reports of a process; None if they are not of the same one."""
    if now.steps < before.steps or len(now.first_tokens) != len(before.first_tokens):
        return None
    return Work(
        steps=now.steps - before.steps,
        seconds=now.seconds - before.seconds,
        tokens=now.tokens - before.tokens,
        rows=now.rows - before.rows,
        outputs=now.outputs - before.outputs,
        first_tokens=tuple(a - b for a, b in zip(now.first_tokens, before.first_tokens, strict=True)),
    )


def _learn(
    done: Mapping[str, Work], replicas: Sequence[PoolReplica], look: PoolLook, history: PoolHistory
) -> PoolHistory:
    """Return what to remember of a look."""
    now, works = look.time, {lease.id: lease.work for lease in look.leases}
    steps = history.steps
    for each in replicas:
        work = done.get(each.id)
        if work is not None and each.age >= YOUNG and work.steps >= ENOUGH_STEPS and work.seconds > 0:
            mean = MeasuredStep(work.seconds / work.steps, work.tokens / work.steps, work.rows / work.steps)
            steps = learn(steps, mean)
    firsts = tuple(sum(counts) for counts in zip(*(work.first_tokens for work in done.values()), strict=True))
    begun, outputs, length = sum(firsts), sum(work.outputs for work in done.values()), history.answer_tokens
    if begun:
        length = length + _SMOOTHING * (outputs / begun - length) if length else outputs / begun
    kept = {id: seen for id, seen in history.engines.items() if now - seen.seen < SILENT_SECONDS}
    present = [each for each in replicas if each.id in works]
    seen = {each.id: SeenEngine(each.phase, now - each.age, now, works[each.id]) for each in present}
    recent = (*history.first_tokens, *([(now, firsts)] if begun else []))
    return PoolHistory(
        time=now,
        engines=kept | seen,
        steps=steps,
        first_tokens=tuple(
            (at, counts) for at, counts in recent if now - at < TTFT_SECONDS and len(counts) == _BUCKETS
        ),
        answer_tokens=round(length, 1),
    )


def _silent(look: PoolLook, history: PoolHistory, replicas: Sequence[PoolReplica]) -> bool:
    """Whether engines are there of which nothing is known: leases are missing that must be there."""
    ids = {lease.id for lease in look.leases}
    if any(
        each.state == "ready" and each.id not in ids and look.time - each.since >= LATE_SECONDS for each in look.started
    ):
        return True
    if look.acted or look.wanted:  # turns that wait tell that gateways have no engine either
        return False
    missing = any(
        id not in ids and seen.phase is ReplicaPhase.READY and look.time - seen.seen < SILENT_SECONDS
        for id, seen in history.engines.items()
    )
    return missing and not any(each.phase is ReplicaPhase.READY for each in replicas)


def drained(history: PoolHistory, victims: Sequence[str]) -> PoolHistory:
    """Return what is remembered once these engines are told to drain."""
    changed = {
        id: replace(seen, phase=ReplicaPhase.DRAINING) if id in victims else seen
        for id, seen in history.engines.items()
    }
    return replace(history, engines=changed)


def _capacity(steps: Sequence[MeasuredStep], ready: Sequence[Lease]) -> Capacity | None:
    """Return what work costs a replica that is loaded as it should be; None while that is not known."""
    if len(steps) < ENOUGH_MEANS or not ready:
        return None
    batch = sum(lease.capacity for lease in ready) / len(ready)
    running, kv = sum(lease.load - lease.waiting for lease in ready), sum(lease.kv_share for lease in ready)
    if running and kv:
        batch = min(batch, KV_SHARE * running / kv)
    return Capacity.of(fit(steps), max(1.0, batch))


def _offered(done: Mapping[str, Work], capacity: Capacity | None, ready: Sequence[Lease], passed: float) -> float:
    """Return the replica-seconds of work since the last look: what was done, as what waits is counted beside it.

    While costs are not known: as many replicas as the requests in flight fill.
    """
    if capacity is None:
        slots = sum(lease.capacity for lease in ready)
        in_flight = sum(lease.load for lease in ready)
        return passed * len(ready) * in_flight / (IN_FLIGHT_SHARE * slots) if slots else 0.0
    outputs = sum(work.outputs for work in done.values())
    prompts = sum(max(0, work.tokens - work.outputs) for work in done.values())
    return capacity.work(prompts, outputs)


def _backlog(leases: Sequence[Lease], waiting: int, capacity: Capacity, answer_tokens: float) -> float:
    return capacity.work(sum(lease.waiting_tokens for lease in leases), waiting * answer_tokens)


def percentile(looks: Sequence[tuple[float, tuple[int, ...]]], share: float) -> float | None:
    """Return a percentile of the TTFT, which lies evenly in its bucket; in the last one, its lower bound."""
    counts: list[int] = [sum(bucket) for bucket in zip(*(counts for _, counts in looks), strict=True)]
    rest = share * sum(counts)
    if not rest:
        return None
    lower = 0.0
    for count, upper in zip(counts, TTFT_BOUNDS, strict=False):
        if count >= rest:
            return lower + (upper - lower) * rest / count
        rest, lower = rest - count, upper
    return lower
