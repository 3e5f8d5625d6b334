"""Metrics of the work that a gateway does beside its turns."""

from __future__ import annotations

from gateway.telemetry.metrics.registry import Registry


class BackgroundMetrics:
    """Faults of ours: each is in the log, and the work was begun again."""

    def __init__(self, registry: Registry) -> None:
        self._failures = registry.counter(
            "roundhouse_background_failures",
            "Times that work beside the turns ended in an unexpected exception and was begun again, by work.",
            "work",
        )

    def failed(self, work: str) -> None:
        """Work failed. Args: work: its name, from a fixed set."""
        self._failures(work).inc()
