"""The CUDA bodies of paged attention, under the emulator and on CUDA, against fp64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from tests.kernels.conftest import Body
from tests.kernels.paged import SPLIT, batch

EDGES = [0, 1, 15, 16, 17, 63, 64, 65, SPLIT - 1, SPLIT, SPLIT + 1]
rows = st.lists(
    st.tuples(st.sampled_from(EDGES) | st.integers(0, 600), st.sampled_from([1, 1, 1, 2, 4, 5, 17, 33])),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=rows,
    heads=st.sampled_from([(1, 1), (4, 1), (6, 2), (3, 3), (20, 1)]),
    dim=st.sampled_from([64, 128]),
    window=st.sampled_from([0, 0, 1, 16, 100, SPLIT, 300]),
    seed=st.integers(0, 99),
)
def test_attention_is_that_of_fp64(
    body: Body, rows: list[tuple[int, int]], heads: tuple[int, int], dim: int, window: int, seed: int
) -> None:
    one = batch(rows, *heads, dim, window, body[1], seed)
    found = one.run(body[0]).double().cpu()
    # Weights and results are rounded to bf16.
    torch.testing.assert_close(found, one.expected(), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("window", [0, 70])
def test_a_token_does_not_depend_on_how_its_prompt_is_cut(body: Body, dim: int, window: int) -> None:
    length = SPLIT + 70
    whole = batch([(0, length)], 4, 2, dim, 0, body[1])
    whole.window = window
    together = whole.run(body[0])
    for cuts in ([0, 3, 67, SPLIT - 1, SPLIT + 1, length], [0, SPLIT, length - 1, length]):
        for start, end in pairwise(cuts):
            part = batch([(start, end - start)], 4, 2, dim, 0, body[1])
            part.query, part.keys, part.values = whole.query[start:end], whole.keys, whole.values
            part.tables, part.window = whole.tables, window
            assert torch.equal(part.run(body[0]), together[start:end]), (start, end)


def test_rows_do_not_depend_on_each_other(body: Body) -> None:
    all_rows = batch([(300, 1), (0, 40), (17, 3), (SPLIT, 1)], 6, 2, 64, 0, body[1])
    together = all_rows.run(body[0]).split(all_rows.counts.tolist())
    queries = all_rows.query.split(all_rows.counts.tolist())
    for order in ([3, 2, 1, 0], [2], [1, 3], [0]):
        some = batch([(0, 1)], 6, 2, 64, 0, body[1])
        some.query, some.keys, some.values = torch.cat([queries[i] for i in order]), all_rows.keys, all_rows.values
        some.tables, some.starts, some.counts = (x[order] for x in (all_rows.tables, all_rows.starts, all_rows.counts))
        assert torch.equal(some.run(body[0]), torch.cat([together[i] for i in order]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_op_picks_the_body_for_bf16(body: Body, dtype: torch.dtype) -> None:
    one = batch([(SPLIT + 3, 1), (0, 40)], 4, 2, 64, 20, body[1])
    tensors = [x.nan_to_num().to(dtype) for x in (one.query, one.keys, one.values)]
    tables = [x.cpu().numpy() for x in (one.starts, one.counts, one.tables)]
    plan = kernels.plan_attention(tables[0], tables[1], tables[2], window=20, device=body[1])
    found = kernels.paged_attention(*tensors, plan).view(one.query.shape)
    if dtype == torch.bfloat16:
        assert torch.equal(found, one.run(body[0]))
    else:
        torch.testing.assert_close(found.double().cpu(), one.expected(), rtol=1e-4, atol=1e-5)


def test_rows_without_tokens_are_passed_over(body: Body) -> None:
    one = batch([(5, 0), (3, 1), (0, 0), (0, 30), (70, 0)], 4, 4, 64, 0, body[1])
    torch.testing.assert_close(one.run(body[0]).double().cpu(), one.expected(), rtol=2**-7, atol=2**-7)


def test_a_wrong_argument_is_named(body: Body) -> None:
    one = batch([(3, 1)], 4, 2, 64, 0, body[1])
    scratch = torch.empty(0, dtype=torch.uint8, device=body[1])

    def run(query: torch.Tensor, splits: int = 1) -> None:
        tables = (one.tables, one.starts, one.counts)
        body[0].paged_attention(torch.empty_like(query), query, one.keys, one.values, *tables, 0, scratch, 1, splits)

    with pytest.raises(ValueError, match="query has another type"):
        run(one.query.float())
    with pytest.raises(ValueError, match="query must have 64 or 128 dimensions"):
        run(one.query[..., :48].contiguous())
    with pytest.raises(ValueError, match="scratch has 0 bytes instead of"):
        run(one.query.contiguous(), splits=2)
