"""The controller: looks at each pool, decides how many engines it has, writes that down, and has it done.

Of several controllers one leads. A decision is written before it is carried out, under the number of the leader's
lease: one that does not lead any more is refused, and does nothing. While Redis is away nothing is known, and nothing
changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic

from msgspec.structs import replace
from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine.registration import Lease
from gateway.access.directory.store import Directory
from gateway.access.identity.secret import derive
from gateway.background import Kept, failure_reporter
from gateway.config.settings import PoolSettings, Settings
from gateway.engines.leases import read_leases
from gateway.engines.wanted import LIFETIME, WANTED_KEY
from gateway.errors import Unavailable
from gateway.records.directory import PoolControl
from gateway.scaling.actuator import Actuator, NoActuator, StartedReplica
from gateway.scaling.bounds import effective_at
from gateway.scaling.leader import Leadership
from gateway.scaling.metrics import ScalingMetrics
from gateway.scaling.observation import PoolLook, drained, observe
from gateway.scaling.records import PoolReason, PoolRecord, PoolRecords, Remembered
from scale.policy import ScaleDecision, ScalePolicy, decide
from scale.reasons import Figure, ScaleReason, ScaleReasonKind
from scale.signals import PoolBounds, PoolSignal, ReplicaPhase

log = logging.getLogger("roundhouse.scaling")

FAILURES = 3
"""Starts that must fail in a row before an operator is told."""
_LONGEST_PAUSE = 300.0
"""Most seconds between starts that fail."""
_SKEW = 60.0
"""Most seconds by which clocks of controllers may differ."""
_GLANCE_SECONDS = 1.0
"""Seconds between glances at what cannot wait for the next look: turns for a pool that sleeps, and Redis' return."""


class Controller:
    """Decides for the pools that have `max_replicas`."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        redis: Redis,
        secret: bytes,
        actuator: Actuator | None = None,
        *,
        metrics: ScalingMetrics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            settings: returns those in force.
            secret: of the installation.
            actuator: starts and ends engines; None: something else follows what is published.
            clock: gives seconds since 1970.
        """
        self._settings = settings
        self._redis = redis
        self._key = derive(secret, "engines")
        self._directory = Directory(redis, secret=secret)
        self._actuator: Actuator = actuator or NoActuator()
        self._clock = clock
        self.metrics = metrics or ScalingMetrics()
        self.records = PoolRecords(redis)
        self.leadership = Leadership(redis, settings().scaling.lease)
        self._answered = -math.inf
        """When Redis last answered, on the process' clock."""
        self._asleep: list[str] = []
        """Pools without an engine, as decided last."""
        self._looking = Kept("pool controller", self._look_repeatedly)
        self._report = failure_reporter("pool controller")

    @property
    def ready(self) -> bool:
        """Whether Redis has answered at the last looks."""
        return monotonic() - self._answered < 3 * self._settings().scaling.period

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Decide while the body runs."""
        await self.leadership.start()
        await self._looking.start()
        try:
            yield
        finally:
            await self._looking.aclose()
            await self.leadership.aclose()

    async def _look_repeatedly(self) -> None:
        while True:
            led = await self.look()
            rest = self._settings().scaling.period
            while rest > 0:
                await asyncio.sleep(min(rest, _GLANCE_SECONDS))
                rest -= _GLANCE_SECONDS
                # A new leader decides at once; so does one that learns that a sleeping pool is wanted.
                if (self.leadership.fence is not None) != led or (led and await self._wanted_asleep()):
                    break

    async def look(self) -> bool:
        """Look at all pools once, if this controller leads; returns whether it does."""
        led = self.leadership.fence is not None
        self.metrics.leads(self.leadership.fence)
        if not led:
            await self._follow()
            return False
        self._asleep = []
        for pool in self._settings().pools:
            if pool.scaled:
                try:
                    await self._scale(pool)
                except (RedisError, OSError, Unavailable) as error:
                    log.warning("pool not looked at", extra={"pool": pool.tier, "error": type(error).__name__})
                except Exception:  # the other pools are looked at all the same
                    self._report()
                else:
                    self._answered = monotonic()
        return True

    async def _follow(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self._redis.ping()
            self._answered = monotonic()

    async def _wanted_asleep(self) -> bool:
        with contextlib.suppress(RedisError, OSError):
            for pool in self._asleep:
                if await self._wanted(pool):
                    return True
        return False

    async def _wanted(self, pool: str) -> int:
        return await self._redis.zcount(WANTED_KEY.format(pool=pool), time.time() - LIFETIME, "+inf")

    async def _scale(self, pool: PoolSettings) -> None:
        """Look at a pool, decide and act.

        Raises:
            RedisError, OSError, Unavailable: Redis does not answer; nothing was changed.
        """
        tier, now, fence = pool.tier, self._clock(), self.leadership.fence
        if fence is None:
            return
        before = await self.records.read(tier)
        # What was remembered before the clock was set back is of no use.
        remembered = before.remembered if before and before.time - now < _SKEW else Remembered()
        leases, _ = await read_leases(self._redis, self._key, tier)
        acted = tier in self._actuator.pools
        started = [each for each in await self._actuator.replicas() if each.pool == tier]
        look = PoolLook(
            time=now,
            leases=leases,
            started=started if acted else _asked_for(before, leases),
            acted=acted,
            wanted=await self._wanted(tier),
        )
        signal, history = observe(look, remembered.history)
        bounds = await self._bounds(pool, now)
        decision, memory = decide(signal, remembered.memory, bounds, self._policy(pool))
        remembered = replace(remembered, history=drained(history, decision.victims), memory=memory)
        remembered, reason = self._judge_starts(pool, started, remembered, now)
        record = _record(before, decision, signal, bounds, remembered, [reason] if reason else [])
        if not await self.records.write(tier, record, fence):
            log.warning("another controller has decided since", extra={"pool": tier, "fence": fence})
            self.leadership.lose()
            return
        self._tell(tier, before, record, signal)
        if record.desired == 0:
            self._asleep.append(tier)
        if acted:
            # While starts fail, one at a time is tried.
            most = 0 if now < remembered.next_start else 1 if remembered.failed_starts else decision.desired
            await self._act(pool, decision, signal, started, most)

    async def _bounds(self, pool: PoolSettings, now: float) -> PoolBounds:
        """Return what the configuration and operators allow a pool now."""
        control = await self._directory.get(PoolControl, pool.tier)
        try:
            return effective_at(pool, control, now)
        except ValueError as error:  # the configuration has changed since
            log.warning("what was set for a pool does not fit", extra={"pool": pool.tier, "error": str(error)})
            return pool.bounds_at(now)

    def _policy(self, pool: PoolSettings) -> ScalePolicy:
        settings = self._settings().scaling
        return ScalePolicy(
            start_seconds=pool.start_seconds,
            ttft_target=pool.ttft_target,
            utilisation=settings.utilisation,
            backlog_seconds=settings.backlog_seconds,
            hold_seconds=settings.hold_seconds,
            sleep_seconds=settings.sleep_seconds,
        )

    def _judge_starts(
        self, pool: PoolSettings, started: Sequence[StartedReplica], remembered: Remembered, now: float
    ) -> tuple[Remembered, PoolReason | None]:
        """Put off the next start after one that has failed; `FAILURES` of them are a reason to alert."""
        failed = [each for each in started if each.state == "failed"]
        last = max((remembered.failed_at, *(each.since for each in failed)))
        came = any(each.state == "ready" and each.since > last for each in started)
        count = 0 if came else remembered.failed_starts + len(failed)
        remembered = replace(remembered, failed_starts=count, failed_at=last)
        if failed:
            self.metrics.failed_starts(pool.tier, len(failed))
            pause = min(self._settings().scaling.retry_seconds * 2 ** max(0, count - 1), _LONGEST_PAUSE)
            remembered = replace(remembered, next_start=now + pause)
        if count < FAILURES:
            return remembered, None
        figures: dict[str, Figure] = {"count": count, "seconds": round(max(0.0, remembered.next_start - now))}
        if failed:
            figures["cause"] = failed[-1].reason
        reason = PoolReason.of(ScaleReason(ScaleReasonKind.STARTS_FAIL, figures, alert=True))
        if failed:
            log.error("engines cannot be started", extra={"pool": pool.tier, "error": reason.text})
        return remembered, reason

    def _tell(self, pool: str, before: PoolRecord | None, record: PoolRecord, signal: PoolSignal) -> None:
        self.metrics.decided(pool, record, signal)
        if before is None or before.desired != record.desired:
            reasons = "; ".join(reason.text for reason in record.reasons)
            log.info("pool changes", extra={"pool": pool, "desired": record.desired, "reason": reasons})

    async def _act(
        self,
        pool: PoolSettings,
        decision: ScaleDecision,
        signal: PoolSignal,
        started: Sequence[StartedReplica],
        most: int,
    ) -> None:
        """Start and end engines. Args: most: how many may be started now."""
        drain = self._settings().scaling.drain_timeout
        for each in started:
            if each.state == "failed":
                await self._actuator.stop(each.name, 0)
            elif each.state == "ready" and each.id in decision.victims:
                await self._actuator.stop(each.name, drain)
        starting = sorted((each for each in started if each.state == "starting"), key=lambda each: each.since)
        present = len(signal.of(ReplicaPhase.READY)) + len(signal.of(ReplicaPhase.STARTING)) - len(decision.victims)
        for each in reversed(starting):
            if present > decision.desired:
                await self._actuator.stop(each.name, 0)
                present -= 1
        staying = sum(not each.spot for each in signal.of(ReplicaPhase.READY) if each.id not in decision.victims)
        staying += sum(each.stays for each in starting)
        for number in range(min(decision.desired - present, most)):
            await self._actuator.start(pool.tier, stays=staying + number < pool.on_demand_replicas)


def _asked_for(before: PoolRecord | None, leases: Sequence[Lease]) -> list[StartedReplica]:
    """Return a replica that starts for each one that is desired and has not announced itself."""
    if before is None:
        return []
    missing = before.desired - sum(lease.state == "ready" for lease in leases)
    return [
        StartedReplica(name=f"asked-{number}", pool="", state="starting", since=before.since)
        for number in range(missing)
    ]


def _record(
    before: PoolRecord | None,
    decision: ScaleDecision,
    signal: PoolSignal,
    bounds: PoolBounds,
    remembered: Remembered,
    more: Sequence[PoolReason],
) -> PoolRecord:
    changed = before is None or before.desired != decision.desired
    return PoolRecord(
        desired=decision.desired,
        min_replicas=bounds.min_replicas,
        max_replicas=bounds.max_replicas,
        ready=len(signal.of(ReplicaPhase.READY)),
        starting=len(signal.of(ReplicaPhase.STARTING)),
        draining=len(signal.of(ReplicaPhase.DRAINING)),
        offered=round(decision.offered, 3),
        reasons=(*map(PoolReason.of, decision.reasons), *more),
        generation=1 if before is None else before.generation + changed,
        since=signal.time if before is None or changed else before.since,
        time=signal.time,
        remembered=remembered,
    )
