"""Metrics of pools with several replicas: how one was chosen, and whether it held what was expected of it."""

from __future__ import annotations

from gateway.telemetry.metrics.registry import MetricRegistry


class PlacementMetrics:
    """Counts how replicas are chosen; nothing for pools with one replica."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._choices = registry.counter(
            "roundhouse_replica_choices",
            "Turns of pools with several replicas, by tier and how the replica was chosen (prefix, load).",
            "tier how",
        )
        self._tokens = registry.counter(
            "roundhouse_replica_prefix_tokens",
            "Prompt tokens of those turns (prompt: all; expected: those that the chosen replica was believed to hold; "
            "found: those that it held).",
            "tier kind",
        )
        self._blocks = registry.gauge(
            "roundhouse_prefix_index_blocks", "KV blocks of a tier's replicas that the gateway knows of.", "tier"
        )

    def answered(self, tier: str, how: str, *, prompt: int, expected: int, found: int) -> None:
        """Count a turn that has ended, at the replica that was chosen or one that stood in for it."""
        self._choices(tier, how).inc()
        self._tokens(tier, "prompt").inc(prompt)
        self._tokens(tier, "expected").inc(expected)
        self._tokens(tier, "found").inc(found)

    def index(self, tier: str, blocks: int) -> None:
        """Set how many blocks the prefix index of a tier has; called when the page is read."""
        self._blocks(tier).set(blocks)
