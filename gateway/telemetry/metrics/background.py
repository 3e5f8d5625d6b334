"""Metrics of the work that a gateway does beside its turns."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class BackgroundMetrics:
    """Faults of ours: each is in the log, and the work was begun again."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failures = Counter(
            "roundhouse_background_failures",
            "Times that work beside the turns ended in an unexpected exception and was begun again, by work.",
            ["work"],
            registry=registry,
        )

    def failed(self, work: str) -> None:
        """Work failed. Args: work: its name, from a fixed set."""
        self._failures.labels(work).inc()
