"""Metrics of models on trial: canaries of routes, and copies of turns."""

from __future__ import annotations

from gateway.telemetry.metrics.registry import MetricRegistry


class TrialMetrics:
    """Counts canaries taken out and copies of turns; nothing while nothing is on trial."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._canaries_out = registry.counter(
            "roundhouse_canaries_out",
            "Canaries of routes taken out because they were worse, by what was wrong (error, slow, poor).",
            "signal",
        )
        self._shadow_copies = registry.counter(
            "roundhouse_shadow_copies",
            "Copies of turns for a model that is tried, by what came of them (answered, error, given_up).",
            "outcome",
        )

    def canary_out(self, signal: str) -> None:
        """Count a canary that was taken out."""
        self._canaries_out(signal).inc()

    def shadow_copy(self, outcome: str) -> None:
        """Count a copy of a turn that has ended."""
        self._shadow_copies(outcome).inc()
