"""Metrics of the configuration file."""

from __future__ import annotations

from gateway.telemetry.metrics.registry import MetricRegistry


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
