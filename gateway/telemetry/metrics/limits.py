"""Metrics of limits and circuit breakers."""

from __future__ import annotations

from gateway.telemetry.metrics.registry import MetricRegistry
from router.health import Circuit

_CIRCUITS = {Circuit.CLOSED: 0, Circuit.HALF_OPEN: 1, Circuit.OPEN: 2}


class LimitMetrics:
    """What is refused, what is set aside, and whom nothing is sent to."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._limited = registry.counter(
            "roundhouse_limit_rejections", "Turns refused because a limit was reached, by limit.", "limit"
        )
        self._reservations = registry.gauge(
            "roundhouse_reservations_held", "Reservations of limits that have not been settled."
        )()
        self._breakers = registry.gauge(
            "roundhouse_breaker_state",
            "Circuit breakers (0 closed, 1 on trial, 2 open): one per engine, and limits, for their Redis.",
            "target",
        )

    def limited(self, limit: str) -> None:
        """`limit` is one of the fields of `gateway.records.quota.Quota`."""
        self._limited(limit).inc()

    def reservations(self, held: int) -> None:
        self._reservations.set(held)

    def breaker(self, target: str, circuit: Circuit) -> None:
        self._breakers(target).set(_CIRCUITS[circuit])

    def left(self, target: str) -> None:
        """Forget the breaker of an engine that has gone."""
        self._breakers.remove(target)
