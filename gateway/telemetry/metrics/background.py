"""Metrics of the work that a gateway does beside its turns."""

from __future__ import annotations

from gateway.telemetry.metrics.registry import MetricRegistry


class BackgroundMetrics:
    """Faults of ours, each of which is in the log."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._failures = registry.counter(
            "roundhouse_background_failures",
            "Unexpected exceptions in background work, which goes on or is begun again, by work.",
            "work",
        )

    def failed(self, work: str) -> None:
        """Work failed. Args: work: its name, from a fixed set."""
        self._failures(work).inc()
