"""Pages of several processes as one, read as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.metrics.merging import merged

FORMATS = {
    "text": (exposition.generate_latest, text_string_to_metric_families),
    "openmetrics": (openmetrics.generate_latest, openmetrics_parser.text_string_to_metric_families),
}
Values = list[tuple[str, float]]
VALUES = st.lists(st.tuples(st.text(max_size=5), st.floats(0, 10)), max_size=4)


def registry(values: Values, *, extra: bool) -> CollectorRegistry:
    made = CollectorRegistry()
    counter = Counter("turns", "Turns, by outcome {x}.", ["outcome"], registry=made)
    gauge = Gauge("running", "What runs.", registry=made)
    histogram = Histogram("seconds", "Times.", ["stage"], buckets=(1, 5), registry=made)
    for name, value in values:
        counter.labels(name).inc(value)
        gauge.inc(value)
        histogram.labels(name).observe(value)
    if extra:
        Gauge("extra", "Only some have it.", registry=made).set(1)
    return made


def samples(families: Iterable[Metric]) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
    return sorted((s.name, tuple(sorted(s.labels.items())), s.value) for family in families for s in family.samples)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=20)
@given(st.lists(st.tuples(VALUES, st.booleans()), min_size=1, max_size=3))
def test_a_merged_page_has_every_sample_with_its_process(format: str, given: list[tuple[Values, bool]]) -> None:
    write: Callable[[CollectorRegistry], bytes]
    write, parse = FORMATS[format]
    registries = [registry(values, extra=extra) for values, extra in given]
    page = merged({number: write(each) for number, each in enumerate(registries, 1)}).decode()
    expected = [
        (name, tuple(sorted((*labels, ("process", str(number))))), value)
        for number, each in enumerate(registries, 1)
        for name, labels, value in samples(parse(write(each).decode()))
    ]
    assert samples(parse(page)) == sorted(expected)
    headers = [line for line in page.split("\n") if line.startswith("#")]
    assert len(headers) == len(set(headers))


def test_no_page_is_an_empty_page() -> None:
    assert merged({}) == b""
