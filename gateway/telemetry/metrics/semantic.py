"""Metrics of the semantic cache and the embedder; part of `gateway.telemetry.metrics.process`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1)


class SemanticMetrics:
    """Of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "roundhouse_semantic_cache_requests",
            "Turns by what the semantic cache did (serve, explore, reject, miss, bypass). Those that the exact cache "
            "answers, and those of tenants without a semantic cache, are not counted.",
            ["result"],
            registry=registry,
        )
        self._seconds = Histogram(
            "roundhouse_semantic_cache_seconds",
            "Look-ups of the semantic cache, embedding included.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._embedder_up = Gauge(
            "roundhouse_embedder_up", "Whether the embedder is connected.", ["model"], registry=registry
        )

    def asked(self, result: str, seconds: float | None) -> None:
        """One turn has asked; `seconds` is None if it did not look up."""
        self._requests.labels(result).inc()
        if seconds is not None:
            self._seconds.observe(seconds)

    def embedder(self, model: str, *, up: bool) -> None:
        """Called when the page is read."""
        self._embedder_up.labels(model).set(up)
