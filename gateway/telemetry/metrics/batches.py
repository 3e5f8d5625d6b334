"""Metrics of the batches that a gateway runs."""

from __future__ import annotations

from collections.abc import Callable

from gateway.telemetry.metrics.registry import MetricRegistry

_RESULTS = ("completed", "failed")


class BatchMetrics:
    """Lines of batches: those that wait, run, and have a result."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._running = registry.gauge("roundhouse_batch_lines_running", "Lines of batches that are being answered.")()
        self._waiting = registry.gauge(
            "roundhouse_batch_lines_waiting", "Lines of this gateway's batches that wait to be answered."
        )()
        self._results = registry.counter(
            "roundhouse_batch_lines",
            f"Lines of batches that have got a result, by what it is ({', '.join(_RESULTS)}).",
            "result",
        )
        for result in _RESULTS:
            self._results(result)

    def watch(self, *, running: Callable[[], float], waiting: Callable[[], float]) -> None:
        """Take the functions that count lines; both are called when the page is read."""
        self._running.set_function(running)
        self._waiting.set_function(waiting)

    def result(self, *, failed: bool) -> None:
        """Count a line that has got its result."""
        self._results(_RESULTS[failed]).inc()
