"""Metrics of answers: how fast their tokens came, and how many they were."""

from __future__ import annotations

from gateway.telemetry.metrics.registry import LATENCY, MetricRegistry

_TOKEN_LATENCY = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)


class AnswerMetrics:
    """Of engines, and of caches where they answer."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._first_token = registry.histogram(
            "roundhouse_time_to_first_token_seconds",
            "Time from the arrival of a turn to its first text.",
            "tier cache",
            buckets=LATENCY,
        )
        self._inter_token = registry.histogram(
            "roundhouse_inter_token_seconds",
            "Mean time between output tokens of one turn.",
            "tier",
            buckets=_TOKEN_LATENCY,
        )
        self._queue = registry.histogram(
            "roundhouse_engine_queue_seconds",
            "Time from the arrival of a request in an engine to its first step.",
            "tier",
            buckets=LATENCY,
        )
        self._tokens = registry.counter(
            "roundhouse_tokens",
            "Tokens by model and direction (input, cached, output); cached ones are part of input.",
            "model direction",
        )

    def first_token(self, tier: str, cache: str, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        self._first_token(tier, cache).observe(seconds, exemplar)

    def inter_token(self, tier: str, seconds: float) -> None:
        self._inter_token(tier).observe(seconds)

    def queued(self, tier: str, seconds: float) -> None:
        self._queue(tier).observe(seconds)

    def tokens(self, model: str, *, input: int, cached: int, output: int) -> None:
        for direction, amount in (("input", input), ("cached", cached), ("output", output)):
            self._tokens(model, direction).inc(amount)
