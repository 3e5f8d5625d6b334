"""Metrics of a controller, at a port of its own. What it decides, only the one that leads tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.exposition import choose_encoder

from gateway.scaling.records import PoolRecord
from gateway.telemetry.metrics.registry import MetricRegistry
from scale.signals import PoolSignal, ReplicaPhase

Told = tuple[PoolRecord, PoolSignal]


class ScalingMetrics:
    """The last decision of each pool, and what it was made of."""

    def __init__(self) -> None:
        self.registry = registry = MetricRegistry()
        self._pools: dict[str, Told] = {}
        self._leader = registry.gauge("roundhouse_scaling_leader", "Whether this controller decides.")()
        self._fence = registry.gauge(
            "roundhouse_scaling_fence", "Number of the leader's lease, which grows with each take-over."
        )()
        self._failed_starts = registry.counter(
            "roundhouse_pool_failed_starts", "Engines that ended before they answered, by pool.", "pool"
        )
        self._gauge("desired_replicas", "Engines that a pool is to have.", lambda record, _: record.desired)
        self._gauge("min_replicas", "Fewest engines that it may have.", lambda record, _: record.min_replicas)
        self._gauge("max_replicas", "Most engines that it may have.", lambda record, _: record.max_replicas)
        self._gauge("offered_replicas", "Engines that the work keeps busy.", lambda record, _: record.offered)
        self._gauge("wanted", "Turns of all gateways that wait for its first engine.", lambda _, signal: signal.wanted)
        self._gauge(
            "drain_seconds", "Time for which the engine drains that has done so for the longest.", _longest_drain
        )
        self._gauge("decided_timestamp_seconds", "Unix time of the last decision.", lambda record, _: record.time)
        registry.read_gauge(
            "roundhouse_pool_replicas",
            "Engines of a pool, by state (starting, ready, draining).",
            "pool state",
            read=self._replicas,
        )
        registry.read_gauge(
            "roundhouse_pool_reason",
            "1 for each reason of the last decision: load, kv, adapters, ttft, hold, survivors, waking, asleep; and "
            "what an operator should look at: bounds, budget, stuck, starts_fail, no_signal.",
            "pool reason",
            read=self._reasons,
        )

    def leads(self, fence: int | None) -> None:
        """Set whether this controller leads, and under which number."""
        self._leader.set(fence is not None)
        self._fence.set(fence or 0)
        if fence is None:
            self._pools.clear()

    def decided(self, pool: str, record: PoolRecord, signal: PoolSignal) -> None:
        """Take over a decision."""
        self._pools[pool] = record, signal

    def failed_starts(self, pool: str, count: int) -> None:
        """Count engines that ended before they answered."""
        self._failed_starts(pool).inc(count)

    def page(self, accept: str = "") -> bytes:
        """The page in Prometheus' text format, or OpenMetrics if accepted."""
        return choose_encoder(accept)[0](self.registry)

    def _gauge(self, name: str, meaning: str, value: Callable[[PoolRecord, PoolSignal], float]) -> None:
        def read() -> Iterator[tuple[Sequence[str], float]]:
            return (((pool,), value(*told)) for pool, told in self._pools.items())

        self.registry.read_gauge(f"roundhouse_pool_{name}", meaning, "pool", read=read)

    def _replicas(self) -> Iterator[tuple[Sequence[str], float]]:
        for pool, (record, _) in self._pools.items():
            for state in ("starting", "ready", "draining"):
                yield (pool, state), getattr(record, state)

    def _reasons(self) -> Iterator[tuple[Sequence[str], float]]:
        for pool, (record, _) in self._pools.items():
            for kind in {reason.kind for reason in record.reasons}:
                yield (pool, kind), 1.0


def _longest_drain(_: PoolRecord, signal: PoolSignal) -> float:
    return max((each.age for each in signal.of(ReplicaPhase.DRAINING)), default=0.0)
