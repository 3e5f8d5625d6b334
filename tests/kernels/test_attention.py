"""Paged attention on every instruction set, against fp64 and against itself in other batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import LayerCache, library, plan_attention, reference
from kernels.attention import fast_torch
from kernels.ops.attention import NO_SCALES, paged_attention_cost
from tests.amounts import examples, some_of
from tests.kernels.paging import BLOCK, Paged

DTYPES = [torch.float32, torch.bfloat16]
SPLIT = 512
"""Keys of which one split is made; see kernels/csrc/cpu/attention.h."""
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7}
"""Of outputs near one; in bf16 the weights are rounded as well as the results."""
every_shape = settings(
    max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
starts = st.sampled_from([0, 1, 15, 16, 17, 31, 32, 40, 511, 512, 513]) | st.integers(0, 70)
counts = st.sampled_from([1, 1, 1, 2, 15, 16, 17]) | st.integers(0, 80)
sizes = st.sampled_from([(4, 4), (4, 2), (6, 1), (40, 1), (7, 7)])


SHAPES_AND_WINDOWS = [
    (*shape, window)
    for shape in [(3, 3, 32), (2, 2, 48), (4, 2, 64), (3, 1, 80), (8, 1, 64), (5, 1, 128)]
    for window in (None, 75)
]


def attend(batch: Paged) -> torch.Tensor:
    return kernels.paged_attention(batch.query, batch.cache, batch.plan)


def close(found: torch.Tensor, batch: Paged) -> None:
    tolerance = TOLERANCE[batch.dtype]
    torch.testing.assert_close(found.double().cpu(), batch.expected(), rtol=tolerance, atol=tolerance)


@st.composite
def any_batch(draw: st.DrawFn, dtype: torch.dtype, unused: float = math.nan) -> Paged:
    heads, kv_heads = draw(sizes)
    return Paged(
        draw(st.lists(st.tuples(starts, counts), min_size=1, max_size=5)),
        heads=heads,
        kv_heads=kv_heads,
        dim=draw(st.sampled_from([32, 48, 64, 80, 8, 16, 20, 128])),
        window=draw(st.none() | st.integers(1, 50) | st.sampled_from([511, 512, 513])),
        dtype=dtype,
        seed=draw(st.integers(0, 1000)),
        unused=unused,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_shape
@given(st.data())
def test_each_query_gets_the_softmax_over_what_it_may_see(isa: str, dtype: torch.dtype, data: st.DataObject) -> None:
    """For any mix of decodes, chunks and prompts, with blocks in any order and no number in unused slots."""
    batch = data.draw(any_batch(dtype))
    close(attend(batch), batch)


@given(st.data())
@settings(max_examples=examples(15), deadline=None)
def test_the_specification_gives_the_same(data: st.DataObject) -> None:
    """It does not look at unused slots either."""
    batch = data.draw(any_batch(torch.float32))
    close(reference.paged_attention(batch.query, batch.cache, batch.plan), batch)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_plain_torch_gives_the_same(data: st.DataObject) -> None:
    batch = data.draw(any_batch(torch.float32, unused=1e4).filter(lambda batch: all(count for _, count in batch.rows)))
    close(fast_torch.paged_attention(batch.query, batch.cache, batch.plan), batch)


@pytest.mark.parametrize("window", [None, 20])
def test_plain_torch_runs_long_chunks_in_pieces(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    monkeypatch.setattr("kernels.attention.groups._MASK_ELEMENTS", 500)
    batch = Paged([(40, 1), (33, 40), (0, 70)], window=window, unused=1e4)
    close(fast_torch.paged_attention(batch.query, batch.cache, batch.plan), batch)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dim", "window"), [(64, None), (48, 300), (20, None)])
def test_narrower_keys_and_values_are_read_as_what_they_say(
    isa: str, dtype: torch.dtype, stored: torch.dtype, dim: int, window: int | None
) -> None:
    batch = Paged([(600, 1), (0, 70), (31, 3)], 6, 2, dim, window, dtype, stored=stored)
    close(attend(batch), batch)
    whole = attend(batch)
    plan = plan_attention(
        np.array([50], np.int32), np.array([20], np.int32), batch.tables[1:2], window=window, device=torch.device("cpu")
    )
    assert torch.equal(kernels.paged_attention(batch.query[51:71], batch.cache, plan), whole[51:71])


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
def test_plain_torch_reads_narrower_keys_and_values(stored: torch.dtype) -> None:
    batch = Paged([(90, 1), (0, 70), (31, 3)], 6, 2, 48, stored=stored, unused=1.0)
    for run in (fast_torch.paged_attention, reference.paged_attention):
        close(run(batch.query, batch.cache, batch.plan), batch)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 48), (6, 6, 64), (8, 1, 20)])
def test_a_token_does_not_depend_on_its_batch_or_its_chunk(
    isa: str, dtype: torch.dtype, window: int | None, heads: int, kv_heads: int, dim: int
) -> None:
    """The same bits for a token of a whole prompt, of a chunk of it and of its own, alone and among others."""
    length = SPLIT + 150
    batch = Paged([(0, length), (3, 40)], heads, kv_heads, dim, window, dtype)
    whole = attend(batch)[:length]
    for begin, end in [(0, 1), (15, 17), (100, 333), (SPLIT - 1, SPLIT + 1), (SPLIT, length), (length - 1, length)]:
        table = batch.tables[:1, : -(-end // BLOCK)].copy()
        first, count = np.array([begin], np.int32), np.array([end - begin], np.int32)
        plan = plan_attention(first, count, table, window=window, device=torch.device("cpu"))
        alone = kernels.paged_attention(batch.query[begin:end], batch.cache, plan)
        assert torch.equal(alone, whole[begin:end]), (begin, end)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "window"), some_of(SHAPES_AND_WINDOWS, 3))
def test_decodes_and_drafts_get_what_a_prompt_gets(
    isa: str, stored: torch.dtype, heads: int, kv_heads: int, dim: int, window: int | None
) -> None:
    """The same bits for one, two, three and four tokens at a time as for all of them, among keys of any size."""
    length = 2 * SPLIT + 40
    dtype = torch.float32 if stored == torch.float32 else torch.bfloat16
    batch = Paged([(0, length)], heads, kv_heads, dim, window, dtype, seed=dim, stored=stored)
    batch.query *= torch.tensor([0.01, 1, 30]).repeat(length)[:length, None, None]
    whole = attend(batch)
    for count in (1, 2, 3, 4):
        first = np.arange(count, length - count, 127, dtype=np.int32)
        counts, tables = np.full(len(first), count, np.int32), np.repeat(batch.tables, len(first), 0)
        places = torch.from_numpy(np.concatenate([np.arange(x, x + count) for x in first]))
        plan = plan_attention(first, counts, tables, window=window, device=torch.device("cpu"))
        found = kernels.paged_attention(batch.query[places], batch.cache, plan)
        assert torch.equal(found, whole[places]), count


def test_threads_and_the_order_of_rows_change_nothing(isa: str) -> None:
    rows = [(700, 1), (1100, 1), (0, 300), (90, 1), (513, 5), (0, 1)]
    batch = Paged(rows, heads=8, kv_heads=2, dim=64, dtype=torch.bfloat16)
    one = attend(batch)
    order = [3, 0, 5, 2, 4, 1]
    pieces = batch.query.split([count for _, count in rows])
    first, count = (np.array([rows[i][part] for i in order], np.int32) for part in range(2))
    plan = plan_attention(first, count, batch.tables[order], window=None, device=torch.device("cpu"))
    query = torch.cat([pieces[i] for i in order])
    try:
        torch.set_num_threads(2)
        two = attend(batch)
        shuffled = kernels.paged_attention(query, batch.cache, plan)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(one, two)
    outputs = one.split([count for _, count in rows])
    assert torch.equal(shuffled, torch.cat([outputs[i] for i in order]))


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (8, 2), (20, 1)])
@pytest.mark.parametrize("window", [None, 1300])
def test_a_long_row_is_the_same_on_any_number_of_threads(
    isa: str, stored: torch.dtype, heads: int, kv_heads: int, window: int | None
) -> None:
    """Its splits are shared among threads, and what was in scratch memory is not seen."""
    dtype = torch.float32 if stored == torch.float32 else torch.bfloat16
    rows = [(90, 1), (8 * SPLIT + 70, 1), (0, 40), (5 * SPLIT - 2, 3)]
    batch = Paged(rows, heads, kv_heads, 32, window, dtype, stored=stored)
    body, plan = library.cpu, batch.plan
    assert body is not None
    tables = (plan.tables, plan.starts, plan.counts, window or 0)
    outputs = []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            size = body.paged_attention_scratch(heads, kv_heads, 32, threads, *plan.tables.shape)
            scratch = torch.full((size,), 255, dtype=torch.uint8)
            outputs.append(torch.full((len(batch.query), heads * 32), torch.nan, dtype=dtype))
            scales = batch.scales or (NO_SCALES, NO_SCALES)
            body.paged_attention(
                outputs[-1], batch.query, batch.key_cache, batch.value_cache, *scales, *tables, scratch
            )
    finally:
        torch.set_num_threads(1)
    close(outputs[0], batch)
    assert all(torch.equal(outputs[0], each) for each in outputs[1:])


def test_large_scores_and_a_window_of_one(isa: str) -> None:
    batch = Paged([(40, 3)], window=1, dtype=torch.float32)
    values = batch.sequences[0][1][40:].repeat_interleave(2, 1).flatten(1)
    torch.testing.assert_close(attend(batch), values, rtol=2e-7, atol=0)
    batch = Paged([(600, 2)], dtype=torch.float32)
    batch.query.mul_(100)
    assert attend(batch).isfinite().all()
    torch.testing.assert_close(attend(batch).double(), batch.expected(), rtol=0, atol=1e-3)


def test_nothing_is_written_around_the_output(isa: str) -> None:
    batch = Paged([(33, 1), (0, 5)], dim=48, dtype=torch.bfloat16)
    guarded = torch.full((8, 4 * 48), torch.nan, dtype=torch.bfloat16)
    body, plan = library.cpu, batch.plan
    assert body is not None
    scratch = torch.empty(body.paged_attention_scratch(4, 2, 48, 1, 2, 3), dtype=torch.uint8)
    caches = (batch.key_cache, batch.value_cache, NO_SCALES, NO_SCALES)
    body.paged_attention(guarded[1:-1], batch.query, *caches, plan.tables, plan.starts, plan.counts, 0, scratch)
    assert torch.equal(guarded[1:-1], attend(batch))
    assert guarded[0].isnan().all() and guarded[-1].isnan().all()


def test_a_block_far_into_the_cache_is_found(isa: str) -> None:
    """Beyond 2^31 elements, of which only a few are ever touched."""
    batch = Paged([(5, 1)], heads=1, kv_heads=1, dim=64, dtype=torch.bfloat16)
    blocks = 2**31 // (BLOCK * 64) + 2
    caches = [torch.empty(blocks, BLOCK, 1, 64, dtype=torch.bfloat16) for _ in range(2)]
    far = np.array([[blocks - 1]], np.int32)
    for cache, source in zip(caches, (batch.key_cache, batch.value_cache), strict=True):
        cache[-1] = source[batch.tables[0, 0]]
    plan = plan_attention(
        np.array([5], np.int32), np.array([1], np.int32), far, window=None, device=torch.device("cpu")
    )
    assert torch.equal(kernels.paged_attention(batch.query, LayerCache(caches[0], caches[1]), plan), attend(batch))


def test_the_op_keeps_torchs_rules(isa: str) -> None:
    batch = Paged([(17, 1), (0, 3)], unused=0.0)
    plan = batch.plan
    arguments = (
        batch.query,
        batch.key_cache,
        batch.value_cache,
        plan.tables,
        plan.starts,
        plan.counts,
        None,
        None,
        None,
    )
    torch.library.opcheck(torch.ops.roundhouse.paged_attention.default, arguments)


def test_a_wrong_argument_is_named(isa: str) -> None:
    batch = Paged([(17, 1), (0, 3)])
    body, plan = library.cpu, batch.plan
    assert body is not None
    good = {
        "out": torch.empty(4, 128),
        "query": batch.query,
        "key_cache": batch.key_cache,
        "value_cache": batch.value_cache,
        "key_scales": NO_SCALES,
        "value_scales": NO_SCALES,
        "tables": plan.tables,
        "starts": plan.starts,
        "counts": plan.counts,
        "window": 0,
        "scratch": torch.empty(body.paged_attention_scratch(4, 2, 32, 1, 2, 2), dtype=torch.uint8),
    }
    for name, wrong, message in [
        ("query", batch.query.double(), "query must be float32 or bfloat16"),
        ("key_cache", batch.key_cache[:, :8], "key_cache has 8 elements in dimension 1"),
        ("value_cache", batch.value_cache.bfloat16(), "value_cache has another type"),
        (
            "key_cache",
            batch.key_cache.double(),
            "key_cache has another type than query, bfloat16, float16, float8_e4m3fn or int8",
        ),
        ("tables", plan.tables.long(), "tables has another type"),
        ("tables", plan.tables[:, :1].contiguous(), "tables is too narrow for row 0"),
        ("counts", plan.counts + 1, "counts must add up to the tokens of query"),
        ("scratch", torch.empty(100, dtype=torch.uint8), "scratch is too small"),
    ]:
        with pytest.raises(ValueError, match=message):
            body.paged_attention(*(good | {name: wrong}).values())


def test_the_cost_counts_what_is_seen() -> None:
    cost = paged_attention_cost([(9, 1), (0, 3)], heads=4, kv_heads=2, dim=8, itemsize=2)
    assert cost.flops == 4 * (10 + 1 + 2 + 3) * 4 * 8
    assert cost.bytes == 2 * 2 * 8 * ((1 + 3) * 4 + (10 + 3) * 2)
    assert paged_attention_cost([(9, 2)], 4, 2, 8, 2, window=3).flops == 4 * 6 * 4 * 8
