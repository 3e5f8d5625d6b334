"""What the benchmark derives from timed tokens."""

from __future__ import annotations

import pytest

from bench.checkpoints import SHAPES
from bench.measure import MachineLimits, Measurement, median, prompts, quantile, summarise
from bench.subjects.interface import RequestBatch, Trace

MACHINE = MachineLimits(read_bandwidth=1e9, matmul=1e12)
SHAPE = SHAPES["mini"]


def batch(requests: int, length: int, new_tokens: int, shared: int = 0) -> RequestBatch:
    return RequestBatch([[5] * length] * requests, new_tokens, shared)


def test_summarise_reduces_traces_to_rates_and_quantiles() -> None:
    """Throughput ends with the last token, TTFT counts from submission, gaps are pooled over requests."""
    traces = [Trace([1, 2, 3], [0.5, 1.0, 2.0]), Trace([4, 5, 6], [1.5, 2.0, 2.5])]
    figures = summarise(traces, batch(2, 10, 3), SHAPE, "bf16", MACHINE)
    assert figures["tokens_per_second"] == 6 / 2.5
    assert (figures["ttft_p50"], figures["ttft_p95"]) == (0.5, 1.5)
    assert (figures["itl_p50"], figures["itl_p95"]) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("precision", "weight", "kv"), [("fp32", 4, 4), ("bf16", 2, 2), ("int8", 1, 2), ("int4", 0.5625, 2)]
)
def test_roofline_share_is_bytes_of_weights_and_kv_over_bandwidth_and_itl(
    precision: str, weight: float, kv: int
) -> None:
    """Two requests with 10 prompt tokens and 3 more read the weights once and the KV of 11.5 tokens each."""
    traces = [Trace([1, 2, 3], [0.5, 1.0, 1.5])] * 2
    figures = summarise(traces, batch(2, 10, 3), SHAPE, precision, MACHINE)  # type: ignore[arg-type]
    step = weight * SHAPE.read_parameters + kv * 2 * 11.5 * SHAPE.kv_elements
    assert figures["roofline"] == pytest.approx(step / 1e9 / 0.5)


def test_roofline_of_many_requests_is_what_their_products_take() -> None:
    slow = MachineLimits(read_bandwidth=1e12, matmul=1e6)
    figures = summarise([Trace([1, 2], [1.0, 3.0])] * 8, batch(8, 10, 2), SHAPE, "bf16", slow)
    assert figures["roofline"] == pytest.approx(8 * 2 * SHAPE.read_parameters / 1e6 / 2)


def test_tokens_that_come_together_have_no_roofline_share() -> None:
    assert summarise([Trace([1, 2, 3], [1.0, 1.0, 1.0])], batch(1, 10, 3), SHAPE, "bf16", MACHINE)["roofline"] == 0


def test_a_shared_prefix_is_computed_once() -> None:
    traces = [Trace([1, 2], [1.0, 2.0])] * 4
    alone = summarise(traces, batch(4, 30, 2), SHAPE, "bf16", MACHINE)
    shared = summarise(traces, batch(4, 30, 2, shared=20), SHAPE, "bf16", MACHINE)
    assert shared["prefill"] / alone["prefill"] == pytest.approx((20 + 4 * 10) / (4 * 30))


def test_median_takes_each_figure_over_the_repeats() -> None:
    rows = [
        Measurement("mini", "bf16", "1", "x", peak_memory=0, machine=MACHINE, **figures)
        for first, gap in ((1.0, 9.0), (2.0, 1.0), (3.0, 2.0))
        for figures in [summarise([Trace([1, 2], [first, first + gap])], batch(1, 4, 2), SHAPE, "bf16", MACHINE)]
    ]
    found = median(rows)
    assert (found.ttft_p50, found.itl_p50) == (2.0, 2.0)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.0), (0.51, 3.0), (0.95, 4.0), (1.0, 4.0)])
def test_quantile_is_the_smallest_value_that_reaches_the_share(share: float, expected: float) -> None:
    assert quantile([3.0, 1.0, 4.0, 2.0], share) == expected


def test_prompts_are_the_same_for_the_same_seed_only() -> None:
    assert prompts(2, 5, 100, seed=1) == prompts(2, 5, 100, seed=1)
    assert prompts(2, 5, 100, seed=1) != prompts(2, 5, 100, seed=2)
