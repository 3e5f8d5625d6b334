"""Metrics of the semantic cache and the embedder."""

from __future__ import annotations

from gateway.telemetry.metrics.registry import MetricRegistry

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1)


class SemanticMetrics:
    """Counts look-ups of the semantic cache, and shows whether its embedder is connected."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._requests = registry.counter(
            "roundhouse_semantic_cache_requests",
            "Turns by what the semantic cache did (serve, explore, reject, miss, bypass). Those that the exact cache "
            "answers, and those of tenants without a semantic cache, are not counted.",
            "result",
        )
        self._seconds = registry.histogram(
            "roundhouse_semantic_cache_seconds", "Look-ups of the semantic cache, embedding included.", buckets=_SECONDS
        )()
        self._embedder_up = registry.gauge("roundhouse_embedder_up", "Whether the embedder is connected.", "model")

    def asked(self, result: str, seconds: float | None) -> None:
        """Count a turn that asked the cache; `seconds` is None if it did not look up."""
        self._requests(result).inc()
        if seconds is not None:
            self._seconds.observe(seconds)

    def embedder(self, model: str, *, up: bool) -> None:
        """Set whether the embedder is connected; called when the page is read."""
        self._embedder_up(model).set(up)
