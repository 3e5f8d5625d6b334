"""Prometheus metrics of one gateway process, served at `/metrics`.

No label ever names a tenant, key or user: their number has no bound, and numbers per tenant live in Redis. Labels that
do exist are bounded whatever they are given: beyond `MAX_SERIES` combinations of one metric, new ones count as "other".
`docs/metrics.md` is generated from what is declared in the modules beside this one.
"""

from __future__ import annotations

from prometheus_client.exposition import choose_encoder

from gateway.telemetry.activity import Activity
from gateway.telemetry.metrics.answers import AnswerMetrics
from gateway.telemetry.metrics.background import BackgroundMetrics
from gateway.telemetry.metrics.budgets import BudgetMetrics
from gateway.telemetry.metrics.configuration import ConfigurationMetrics
from gateway.telemetry.metrics.connections import ConnectionMetrics
from gateway.telemetry.metrics.engines import EngineMetrics
from gateway.telemetry.metrics.escalations import EscalationMetrics
from gateway.telemetry.metrics.limits import LimitMetrics
from gateway.telemetry.metrics.placements import PlacementMetrics
from gateway.telemetry.metrics.redis import RedisMetrics
from gateway.telemetry.metrics.registry import MetricRegistry
from gateway.telemetry.metrics.semantic import SemanticMetrics
from gateway.telemetry.metrics.trials import TrialMetrics
from gateway.telemetry.metrics.turns import TurnMetrics


class Metrics:
    """All metrics of a process, in a registry of their own, so that tests and several apps do not collide."""

    def __init__(self) -> None:
        self.registry = registry = MetricRegistry()
        self.activity = Activity()
        """Per tenant, and therefore not on the page."""
        self.turns = TurnMetrics(registry)
        self.answers = AnswerMetrics(registry)
        self.limits = LimitMetrics(registry)
        self.connections = ConnectionMetrics(registry)
        self.redis = RedisMetrics(registry)
        self.configuration = ConfigurationMetrics(registry)
        self.background = BackgroundMetrics(registry)
        self.placements = PlacementMetrics(registry)
        self.escalations = EscalationMetrics(registry)
        self.engines = EngineMetrics(registry)
        self.budgets = BudgetMetrics(registry)
        self.trials = TrialMetrics(registry)
        self.semantic = SemanticMetrics(registry)

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: Prometheus' text format, or OpenMetrics if accepted."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
