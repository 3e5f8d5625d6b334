"""Prometheus metrics of one gateway process, served at `/metrics`.

No label ever names a tenant, key or user: their number has no bound, and numbers per tenant live in Redis. Labels that
do exist are bounded whatever they are given: beyond `MAX_SERIES` combinations of one metric, new ones count as "other".
`docs/metrics.md` is generated from what is declared in the modules beside this one.
"""

from __future__ import annotations

from prometheus_client.exposition import choose_encoder

from gateway.telemetry.activity import Activity
from gateway.telemetry.metrics.answers import AnswerMetrics
from gateway.telemetry.metrics.batches import BatchMetrics
from gateway.telemetry.metrics.connections import ConnectionMetrics
from gateway.telemetry.metrics.engines import EngineMetrics
from gateway.telemetry.metrics.limits import LimitMetrics
from gateway.telemetry.metrics.redis import RedisMetrics
from gateway.telemetry.metrics.registry import MetricRegistry
from gateway.telemetry.metrics.routing import BudgetMetrics, JudgeMetrics, PlacementMetrics, TrialMetrics
from gateway.telemetry.metrics.semantic import SemanticMetrics
from gateway.telemetry.metrics.turns import TurnMetrics


class BackgroundMetrics:
    """Faults of ours, each of which is in the log."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._failures = registry.counter(
            "roundhouse_background_failures",
            "Unexpected exceptions in background work, which goes on or starts again, by work.",
            "work",
        )

    def failed(self, work: str) -> None:
        """Work failed. Args: work: its name, from a fixed set."""
        self._failures(work).inc()


class ConfigurationMetrics:
    """Whether it could be read, and since when it is in force."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._config_reloads = registry.counter(
            "roundhouse_config_reloads",
            "Times that the configuration was read again, by outcome (changed, unchanged, refused).",
            "outcome",
        )
        self._config_valid = registry.gauge(
            "roundhouse_config_valid", "Whether the configuration could be used when last read."
        )()
        self._config_valid.set(1)
        self._config_changed = registry.gauge(
            "roundhouse_config_changed_timestamp_seconds", "Unix time since which the configuration is in force."
        )()
        self._config_changed.set_to_current_time()

    def read(self, outcome: str) -> None:
        """Count a reading of the file, by its outcome."""
        self._config_reloads(outcome).inc()
        self._config_valid.set(outcome != "refused")
        if outcome == "changed":
            self._config_changed.set_to_current_time()


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
        self.engines = EngineMetrics(registry)
        self.budgets = BudgetMetrics(registry)
        self.trials = TrialMetrics(registry)
        self.judge = JudgeMetrics(registry)
        self.semantic = SemanticMetrics(registry)
        self.batches = BatchMetrics(registry)

    def page(self, accept: str = "") -> bytes:
        """The page in Prometheus' text format, or OpenMetrics if accepted."""
        return choose_encoder(accept)[0](self.registry)


def content_type(accept: str) -> str:
    """Return the content type of a page that is asked for with this header."""
    return choose_encoder(accept)[1]
