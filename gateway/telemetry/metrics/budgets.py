"""What `auto` has spent of its budget, for the metrics page."""

from __future__ import annotations

from collections.abc import Callable

from gateway.telemetry.metrics.registry import MetricRegistry


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
