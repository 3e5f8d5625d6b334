"""Quantiles of histograms."""

from __future__ import annotations

import pytest

from gateway.telemetry.latencies import SHOWN, quantile, read, since
from gateway.telemetry.metrics.process import Metrics


def test_a_quantile_is_interpolated_within_its_bucket() -> None:
    buckets = {1.0: 10.0, 2.0: 30.0, 4.0: 40.0, float("inf"): 40.0}
    assert quantile(buckets, 0.25) == pytest.approx(1.0)
    assert quantile(buckets, 0.5) == pytest.approx(1.5)
    assert quantile(buckets, 0.95) == pytest.approx(3.6)


def test_beyond_the_last_bound_there_is_only_that_bound() -> None:
    assert quantile({1.0: 1.0, float("inf"): 10.0}, 0.9) == 1.0


def test_without_observations_there_is_none() -> None:
    assert quantile({}, 0.5) is None
    assert quantile({1.0: 0.0, float("inf"): 0.0}, 0.5) is None


def test_it_reads_what_a_gateway_serves_and_tells_two_readings_apart() -> None:
    metrics = Metrics()
    metrics.answers.first_token("small", "miss", 0.02)
    before = read(metrics.page().decode())
    for tier in ("small", "large"):
        metrics.answers.first_token(tier, "miss", 0.02)
    after = read(metrics.page().decode())
    assert set(after) == set(SHOWN)
    change = since(after["first token"], before["first token"])
    assert change[float("inf")] == 2
    assert 0.01 < (quantile(change, 0.5) or 0) <= 0.025


def test_a_process_that_has_started_anew_counts_from_zero() -> None:
    assert since({1.0: 2.0}, {1.0: 5.0}) == {1.0: 2.0}
