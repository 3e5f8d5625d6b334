"""Quantiles from the histograms of a `/metrics` page, as Prometheus computes them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Buckets = dict[float, float]
"""Upper bound in seconds -> observations up to it."""

SHOWN = {
    "first token": "roundhouse_time_to_first_token_seconds",
    "between tokens": "roundhouse_inter_token_seconds",
    "overhead": "roundhouse_overhead_seconds",
    "redis": "roundhouse_redis_seconds",
}


def read(page: str) -> dict[str, Buckets]:
    """The histograms of `SHOWN`, summed over their labels; of the overhead, that of all stages together."""
    wanted = {metric + "_bucket": name for name, metric in SHOWN.items()}
    found: dict[str, Buckets] = {name: defaultdict(float) for name in SHOWN}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in wanted and sample.labels.get("stage", "all") == "all":
                found[wanted[sample.name]][float(sample.labels["le"])] += sample.value
    return {name: dict(buckets) for name, buckets in found.items()}


def since(buckets: Mapping[float, float], before: Mapping[float, float]) -> Buckets:
    """What was observed between two readings; all of it if the process has started anew."""
    change = {bound: count - before.get(bound, 0.0) for bound, count in buckets.items()}
    return dict(buckets) if any(count < 0 for count in change.values()) else change


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """The value that `share` of the observations do not exceed, interpolated within its bucket; None without any.

    Beyond the last finite bound, that bound (as Prometheus' `histogram_quantile` does).
    """
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    rank = share * buckets[bounds[-1]]
    low, below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank and buckets[bound] > below:
            return low if bound == float("inf") else low + (bound - low) * (rank - below) / (buckets[bound] - below)
        low, below = bound, buckets[bound]
    return low
