"""The CUDA bodies of paged attention, under the emulator and on CUDA, against fp64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import LayerCache
from tests.amounts import crossed, examples
from tests.kernels.conftest import Body
from tests.kernels.paged import SPLIT, Batch, batch

EDGES = [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, SPLIT - 1, SPLIT, SPLIT + 1]
rows = st.lists(
    st.tuples(st.sampled_from(EDGES) | st.integers(0, 600), st.sampled_from([1, 1, 1, 2, 4, 5, 17, 33])),
    min_size=1,
    max_size=4,
)
FP32, BF16, FP8, INT8 = torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8
TYPES = [(BF16, BF16), (BF16, FP8), (BF16, INT8), (FP32, FP32), (FP32, BF16), (FP32, FP8), (FP32, INT8)]
"""Of queries, and of keys and values."""
TOLERANCE = {FP32: 5e-6, BF16: 2**-7}
"""Of outputs near one; in bf16 weights and results are rounded."""
VARIANTS = [(BF16, BF16, 64), (BF16, BF16, 128), (BF16, FP8, 64), (BF16, INT8, 128), (BF16, BF16, 80), (FP32, INT8, 24)]
"""Types and dimensions of each kind of body: on tensor cores, which take 64 and 128 dimensions of bf16, and in fp32."""


def close(one: Batch, found: torch.Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double().cpu(), one.expected(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "stored"), TYPES, ids=str)
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=rows,
    heads=st.sampled_from([(1, 1), (4, 1), (6, 2), (3, 3), (20, 1)]),
    dim=st.sampled_from([64, 128, 64, 128, 1, 2, 20, 32, 80, 96, 255, 256]),
    window=st.sampled_from([0, 0, 1, 16, 100, SPLIT, 300]),
    seed=st.integers(0, 99),
)
def test_attention_is_that_of_fp64(
    body: Body,
    dtype: torch.dtype,
    stored: torch.dtype,
    rows: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    window: int,
    seed: int,
) -> None:
    one = batch(rows, (*heads, dim), window, body[1], seed, dtype, stored)
    close(one, one.run(body[0]))


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_every_number_of_fp8_is_read_as_it_is(body: Body, dtype: torch.dtype) -> None:
    """A key and value of each of them but NaN, one by one: alone, a value is what comes of it."""
    numbers = torch.arange(256, dtype=torch.uint8)
    numbers = numbers[(numbers & 127) != 127]
    one = batch([(0, 1)] * 4, (1, 1, 64), 0, body[1], 0, dtype, FP8)
    for row, part in enumerate(torch.cat((numbers, numbers[:2])).view(4, 64)):
        one.values.view(torch.uint8)[int(one.tables[row, 0]), 0, 0] = part.to(body[1])
    found = one.run(body[0]).cpu()
    expected = torch.cat((numbers, numbers[:2])).view(FP8).to(dtype).view(4, 1, 64)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("variant", "window"), crossed(VARIANTS, [0, 70]), ids=str)
def test_a_token_does_not_depend_on_how_its_prompt_is_cut(
    body: Body, variant: tuple[torch.dtype, torch.dtype, int], window: int
) -> None:
    dtype, stored, dim = variant
    length = SPLIT + 70
    whole = batch([(0, length)], (4, 2, dim), 0, body[1], 0, dtype, stored)
    whole.window = window
    together = whole.run(body[0])
    for cuts in ([0, 3, 67, SPLIT - 1, SPLIT + 1, length], [0, SPLIT, length - 1, length]):
        for start, end in pairwise(cuts):
            part = batch([(start, end - start)], (4, 2, dim), 0, body[1])
            part.query, part.keys, part.values = whole.query[start:end], whole.keys, whole.values
            part.tables, part.window, part.scales = whole.tables, window, whole.scales
            assert torch.equal(part.run(body[0]), together[start:end]), (start, end)


@pytest.mark.parametrize(("dtype", "stored", "dim"), VARIANTS, ids=str)
def test_rows_do_not_depend_on_each_other(body: Body, dtype: torch.dtype, stored: torch.dtype, dim: int) -> None:
    all_rows = batch([(300, 1), (0, 40), (17, 3), (SPLIT, 1)], (6, 2, dim), 0, body[1], 0, dtype, stored)
    together = all_rows.run(body[0]).split(all_rows.counts.tolist())
    queries = all_rows.query.split(all_rows.counts.tolist())
    for order in ([3, 2, 1, 0], [2], [1, 3], [0]):
        some = batch([(0, 1)], (6, 2, dim), 0, body[1])
        some.scales = all_rows.scales
        some.query, some.keys, some.values = torch.cat([queries[i] for i in order]), all_rows.keys, all_rows.values
        some.tables, some.starts, some.counts = (x[order] for x in (all_rows.tables, all_rows.starts, all_rows.counts))
        assert torch.equal(some.run(body[0]), torch.cat([together[i] for i in order]))


@pytest.mark.parametrize(("dtype", "stored", "dim"), [(*types, dim) for types in TYPES for dim in (48, 64)], ids=str)
def test_the_op_is_the_built_body_for_all_that_an_engine_can_have(
    body: Body, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, stored: torch.dtype, dim: int
) -> None:
    monkeypatch.setattr("kernels.attention.fast_torch.paged_attention", None)
    one = batch([(SPLIT + 3, 1), (0, 40)], (4, 2, dim), 20, body[1], 0, dtype, stored)
    tables = [x.cpu().numpy() for x in (one.starts, one.counts, one.tables)]
    plan = kernels.plan_attention(tables[0], tables[1], tables[2], window=20, device=body[1])
    found = kernels.paged_attention(one.query, LayerCache(one.keys, one.values, *(one.scales or ())), plan)
    assert torch.equal(found.view(one.query.shape), one.run(body[0]))
    assert kernels.attention_is_built(one.keys, dtype)


def test_heads_of_more_dimensions_are_left_to_plain_torch(body: Body) -> None:
    one = batch([(5, 1)], (2, 1, 260), 0, body[1], 0, FP32)
    one.keys, one.values = one.keys.nan_to_num(), one.values.nan_to_num()
    tables = [x.cpu().numpy() for x in (one.starts, one.counts, one.tables)]
    plan = kernels.plan_attention(tables[0], tables[1], tables[2], window=None, device=body[1])
    close(one, kernels.paged_attention(one.query, LayerCache(one.keys, one.values), plan).view(one.query.shape))
    assert not kernels.attention_is_built(one.keys, FP32)


@pytest.mark.parametrize("dim", [64, 80])
def test_strides_that_are_not_whole_are_fine(body: Body, dim: int) -> None:
    """Heads that lie at odd addresses, as they do behind other numbers."""
    one = batch([(SPLIT + 3, 1), (0, 20)], (4, 2, dim), 0, body[1])
    wide = [torch.full((*x.shape[:2], x.shape[2] * dim + 3), torch.nan, dtype=x.dtype) for x in (one.keys, one.values)]
    views = [x[..., 1:-2].unflatten(-1, one.keys.shape[2:]) for x in wide]
    for view, cache in zip(views, (one.keys, one.values), strict=True):
        view.copy_(cache)
    one.keys, one.values = views
    close(one, one.run(body[0]))


def test_rows_without_tokens_are_passed_over(body: Body) -> None:
    for dtype in (BF16, FP32):
        one = batch([(5, 0), (3, 1), (0, 0), (0, 30), (70, 0)], (4, 4, 64), 0, body[1], 0, dtype)
        close(one, one.run(body[0]))


def test_a_wrong_argument_is_named(body: Body) -> None:
    one = batch([(3, 1)], (4, 2, 64), 0, body[1])
    scratch = torch.empty(0, dtype=torch.uint8, device=body[1])

    def run(query: torch.Tensor, keys: torch.Tensor = one.keys, splits: int = 1) -> None:
        tables, scales = (one.tables, one.starts, one.counts), (torch.empty(0), torch.empty(0))
        out = torch.empty_like(query)
        body[0].paged_attention(out, query, keys, keys, *scales, *tables, 0, scratch, 1, splits)

    with pytest.raises(ValueError, match="query must be float32 or bfloat16"):
        run(one.query.double())
    with pytest.raises(ValueError, match="key_cache has another type than query, bfloat16, float8_e4m3fn or int8"):
        run(one.query.contiguous(), one.keys.float())
    with pytest.raises(ValueError, match="query must have at most 256 dimensions"):
        run(one.query.repeat(1, 1, 5))
    with pytest.raises(ValueError, match="key_scales has 1 dimensions instead of 3"):
        run(one.query.contiguous(), one.keys.to(torch.int8))
    with pytest.raises(ValueError, match="scratch has 0 bytes instead of"):
        run(one.query.contiguous(), splits=2)
