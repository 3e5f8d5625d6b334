"""What the benchmark derives from timed tokens."""

from __future__ import annotations

import pytest

from bench.checkpoints import SHAPES
from bench.measure import Machine, Result, Trace, median, prompts, quantile, summarise

MACHINE = Machine(read_bandwidth=1e9, matmul=1e12)


def test_summarise_reduces_traces_to_rates_and_quantiles() -> None:
    """Throughput ends with the last token, TTFT counts from submission, gaps are pooled over requests."""
    result = Result(2, [Trace([1, 2, 3], [0.5, 1.0, 2.0]), Trace([4, 5, 6], [1.5, 2.0, 2.5])], peak_memory=7)
    row = summarise("x", result, MACHINE, SHAPES["mini"], "bfloat16", prompt=10)
    assert row.tokens_per_second == 6 / 2.5
    assert (row.ttft_p50, row.ttft_p95) == (0.5, 1.5)
    assert (row.itl_p50, row.itl_p95) == (0.5, 1.0)
    assert (row.concurrency, row.peak_memory) == (2, 7)


def test_roofline_share_is_bytes_of_weights_and_kv_over_bandwidth_and_itl() -> None:
    """Two requests with 10 prompt tokens and 3 more read the weights once and the KV of 11.5 tokens each."""
    shape = SHAPES["mini"]
    result = Result(2, [Trace([1, 2, 3], [0.5, 1.0, 1.5])] * 2, peak_memory=0)
    row = summarise("x", result, MACHINE, shape, "float32", prompt=10)
    step = 4 * (shape.read_parameters + 2 * 11.5 * shape.kv_elements)
    assert row.roofline == pytest.approx(step / 1e9 / 0.5)


def test_median_takes_each_figure_over_the_repeats() -> None:
    rows = [
        summarise("x", Result(1, [Trace([1, 2], [first, first + gap])], 0), MACHINE, SHAPES["mini"], "bfloat16", 4)
        for first, gap in ((1.0, 9.0), (2.0, 1.0), (3.0, 2.0))
    ]
    found = median(rows)
    assert (found.ttft_p50, found.itl_p50) == (2.0, 2.0)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.0), (0.51, 3.0), (0.95, 4.0), (1.0, 4.0)])
def test_quantile_is_the_smallest_value_that_reaches_the_share(share: float, expected: float) -> None:
    assert quantile([3.0, 1.0, 4.0, 2.0], share) == expected


def test_prompts_are_the_same_for_the_same_seed_only() -> None:
    assert prompts(2, 5, 100, seed=1) == prompts(2, 5, 100, seed=1)
    assert prompts(2, 5, 100, seed=1) != prompts(2, 5, 100, seed=2)
