"""Declares Prometheus metrics, keeps their number of time series bounded, and lists them for `docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

MAX_SERIES = 200
"""Most combinations of label values of one metric."""
OTHER = "other"
LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 240)
"""Bounds of buckets, in seconds, for what people wait for."""

M = TypeVar("M", bound=MetricWrapperBase)
Read = Callable[[], Iterable[tuple[Sequence[str], float]]]


class Series(Generic[M]):
    """The time series of one metric, by label values: `series("small", "completed").inc()`."""

    def __init__(self, metric: M) -> None:
        self._metric = metric
        self._known: dict[tuple[str, ...], M] = {}

    def __call__(self, *values: str) -> M:
        if not values:
            return self._metric
        found = self._known.get(values)
        if found is None:
            if len(self._known) >= MAX_SERIES:
                values = (OTHER,) * len(values)
            found = self._known[values] = self._metric.labels(*values)
        return found

    def remove(self, *values: str) -> None:
        """Forget what will have no values any more."""
        if self._known.pop(values, None) is not None:
            self._metric.remove(*values)


class Declaration(NamedTuple):
    """One row of `docs/metrics.md`."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


class MetricRegistry(CollectorRegistry):
    """Holds all metrics of one process. `labels` are the names of a metric's labels, separated by spaces."""

    def __init__(self) -> None:
        super().__init__(auto_describe=True)
        self.declared: list[Declaration] = []

    def counter(self, name: str, meaning: str, labels: str = "") -> Series[Counter]:
        """Declare a counter, which is served as `name` with `_total` behind it."""
        return Series(Counter(name, meaning, self._declare("counter", f"{name}_total", meaning, labels), registry=self))

    def gauge(self, name: str, meaning: str, labels: str = "") -> Series[Gauge]:
        """Declare a gauge."""
        return Series(Gauge(name, meaning, self._declare("gauge", name, meaning, labels), registry=self))

    def histogram(self, name: str, meaning: str, labels: str = "", *, buckets: Sequence[float]) -> Series[Histogram]:
        """Declare a histogram."""
        declared = self._declare("histogram", name, meaning, labels)
        return Series(Histogram(name, meaning, declared, registry=self, buckets=buckets))

    def read_counter(self, name: str, meaning: str, labels: str = "", *, read: Read) -> None:
        """Declare a counter that is kept elsewhere. `read` gives label values and counts when the page is read."""
        declared = self._declare("counter", f"{name}_total", meaning, labels)
        self.register(_Read(lambda: CounterMetricFamily(name, meaning, labels=declared), read))

    def read_gauge(self, name: str, meaning: str, labels: str = "", *, read: Read) -> None:
        """Declare a gauge that is kept elsewhere. `read` gives label values and values when the page is read."""
        declared = self._declare("gauge", name, meaning, labels)
        self.register(_Read(lambda: GaugeMetricFamily(name, meaning, labels=declared), read))

    def _declare(self, kind: str, name: str, meaning: str, labels: str) -> tuple[str, ...]:
        self.declared.append(Declaration(name, kind, names := tuple(labels.split()), meaning))
        return names


class _Read(Collector):
    def __init__(self, family: Callable[[], CounterMetricFamily | GaugeMetricFamily], read: Read) -> None:
        self._family, self._read = family, read

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for labels, value in self._read():
            family.add_metric(labels, value)
        return [family]
