"""Metrics of answers that looked bad."""

from __future__ import annotations

from gateway.telemetry.metrics.registry import MetricRegistry
from router.cascade import Escalation


class EscalationMetrics:
    """Counts answers that looked bad; none while `router.escalate` is off."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._looked = registry.counter(
            "roundhouse_escalations",
            "Answers for `auto` that looked bad, by the tier that gave them, what looked bad (empty, schema, refusal, "
            "doubt) and what followed (escalated: the next tier has answered; not_worth_it; limited: no room in the "
            "limits; unavailable: the next tier gave nothing).",
            "tier signal followed",
        )

    def looked(self, made: Escalation, followed: str) -> None:
        """Count an answer that looked bad."""
        self._looked(made.tier, str(made.signal), followed).inc()
