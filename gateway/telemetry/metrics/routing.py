"""Metrics of routing: replicas, models on trial, and the budget of `auto`."""

from __future__ import annotations

from collections.abc import Callable

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


class TrialMetrics:
    """Counts canaries taken out and copies of turns; nothing while nothing is on trial."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._canaries_out = registry.counter(
            "roundhouse_canaries_out",
            "Canaries taken out of routes because they did worse, by signal (error, slow, poor).",
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


class JudgeMetrics:
    """Counts what became of pairs of answers that were to be judged; nothing while there is no judge."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._judged = registry.counter(
            "roundhouse_judged_pairs",
            "Pairs of answers that a judge was to compare, by outcome (preferred; tie; contradicted: it named another "
            "one in the other order; budget: the day's is spent; unpriced: a model has no price; given_up: others "
            "needed the engine; unfinished: the second answer was cut off; too_long; unreadable; error).",
            "outcome",
        )

    def ended(self, outcome: str) -> None:
        """Count a pair."""
        self._judged(outcome).inc()


class BudgetMetrics:
    """Shows the spent part of the budget; NaN while there is no budget, or nothing was spent under it."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._spent = registry.gauge(
            "roundhouse_route_budget_spent_ratio",
            "What `auto` has spent of what the dearest tier would have cost, under the budget in force, since this "
            "gateway first had it; to compare with `router.budget`.",
        )()
        self._spent.set(float("nan"))

    def watch(self, spent: Callable[[], float]) -> None:
        """Take the function that gives the spent part; it is called when the page is read."""
        self._spent.set_function(spent)
