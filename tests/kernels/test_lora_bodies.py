"""The built bodies of the LoRA ops: against fp64, and the same bits whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import LoraAdapter, LoraLayout, LoraPart, LoraPlan, LoraSite, LoraWorkspace, library
from kernels.lora.layout import read_image, read_vector
from kernels.lora.tables import TablePlan, site_number
from tests.kernels.lora_arenas import SIZES, VOCABULARY, WIDTH, Arena, layout

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
every_shape = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SECTORS = [64, 1032, 1 << 16]
"""Elements: a row goes over many sectors, a chunk over a few, hardly anything over two."""


def wide(dtype: torch.dtype, width: int, sizes: Sequence[int], ranks: Sequence[int], affine: bool) -> LoraLayout:
    """One linear layer "a" with parts of these sizes; a rank of 0 is no part."""
    end = begin = 0
    parts = []
    for size, rank in zip(sizes, ranks, strict=True):
        down, up = end, end + -(-rank * width // 8) * 8
        end = up + -(-rank * size // 8) * 8
        if rank:
            parts.append(LoraPart(begin, begin + size, rank, down, up))
        begin += size
    columns = begin
    site = LoraSite(width, columns, tuple(parts), *((0, -(-columns // 8) * 8) if affine else (None, None)))
    vectors = 2 * -(-columns // 8) * 8
    return LoraLayout({"a": site}, end, vectors, None, end + vectors * 4 // dtype.itemsize)


def plan_of(arena: Arena, adapters: Sequence[LoraAdapter | None], counts: Sequence[int]) -> LoraPlan:
    workspace = LoraWorkspace(arena.memory)
    workspace.hold(adapters)
    plan = workspace.plan(adapters, np.array(counts))
    assert isinstance(plan, TablePlan)
    return plan


def expected(x: torch.Tensor, out: torch.Tensor, arena: Arena, adapter: LoraAdapter) -> torch.Tensor:
    site = adapter.layout.sites["a"]
    total = out.double()
    for part in site.parts:
        columns = part.end - part.begin
        a = read_image(arena.memory, adapter, part.down, part.rank * site.width).view(part.rank, -1).double()
        b = read_image(arena.memory, adapter, part.up, part.rank * columns).view(part.rank, -1).double()
        total[:, part.begin : part.end] += x.double() @ a.T @ b
    if site.scale is not None:
        total *= read_vector(arena.memory, adapter, site.scale, site.columns).double()
    if site.offset is not None:
        total += read_vector(arena.memory, adapter, site.offset, site.columns).double()
    return total


@DTYPES
@every_shape
@given(
    width=st.sampled_from([8, 15, 16, 17, 511, 512, 513, 530]) | st.integers(1, 70),
    sizes=st.lists(st.sampled_from([1, 255, 256, 257, 300]) | st.integers(1, 40), min_size=1, max_size=3),
    rank=st.sampled_from([8, 16, 40]),
    missing=st.integers(0, 3),
    affine=st.booleans(),
    rows=st.sampled_from([1, 2, 3, 4, 5, 7, 47, 48, 49, 97]),
    sector=st.sampled_from(SECTORS),
    seed=st.integers(0, 99),
)
def test_rows_are_those_of_fp64(
    built: str,
    dtype: torch.dtype,
    width: int,
    sizes: list[int],
    rank: int,
    missing: int,
    affine: bool,
    rows: int,
    sector: int,
    seed: int,
) -> None:
    ranks = [0 if part == missing else rank for part in range(len(sizes))]
    arena = Arena([wide(dtype, width, sizes, ranks, affine)], dtype, seed, sector)
    generator = torch.Generator().manual_seed(seed)
    x, out = (torch.randn(rows + 2, size, generator=generator).to(dtype) for size in (width, sum(sizes)))
    wanted = expected(x[1:-1], out[1:-1], arena, arena.adapters[0])
    out[0], out[-1] = torch.nan, torch.nan
    in_fp32 = out.to(torch.float32, copy=True)
    plan = plan_of(arena, [None, arena.adapters[0], None], [1, rows, 1])
    kernels.adapt_linear(x, out, plan, "a")
    assert out[0].isnan().all() and out[-1].isnan().all()
    # Logits are fp32, and get the same sums without the last rounding.
    kernels.adapt_linear(x, in_fp32, plan, "a")
    assert torch.equal(in_fp32[1:-1].to(dtype), out[1:-1])
    assert in_fp32[0].isnan().all() and in_fp32[-1].isnan().all()
    size = (width * rank) ** 0.5 * 3
    tolerance = {torch.float32: 1e-6 * size, torch.bfloat16: 2**-8 * 2}[dtype]
    torch.testing.assert_close(out[1:-1].double(), wanted, rtol=tolerance, atol=tolerance)


@DTYPES
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_the_same_bits_in_any_batch(built: str, dtype: torch.dtype, threads: int) -> None:
    """Alone, or beside rows of its adapter, of other adapters and ranks and of the base, with any number of threads."""
    shapes = [
        wide(dtype, 530, (300, 64, 64), ranks, affine) for ranks, affine in (((8, 8, 8), False), ((24, 0, 8), True))
    ]
    arena = Arena(shapes * 3, dtype, 0, 1032)
    people: list[LoraAdapter | None] = [*arena.adapters, None]
    generator = torch.Generator().manual_seed(1)
    counts = [1, 3, 2, 60, 1, 7, 2, 5, 1, 1, 130]
    owners = [people[index % 7] for index in (0, 1, 6, 2, 3, 0, 4, 5, 6, 0, 1)]
    x, out = (torch.randn(sum(counts), size, generator=generator).to(dtype) for size in (530, 428))
    alone = out.clone()
    ends = np.cumsum(counts).tolist()
    for owner, count, end in zip(owners, counts, ends, strict=True):
        for row in {end - count, end - 1} if owner is not None else set():
            some = out[row : row + 1].clone()
            kernels.adapt_linear(x[row : row + 1], some, plan_of(arena, [owner], [1]), "a")
            alone[row] = some
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        kernels.adapt_linear(x, out, plan_of(arena, owners, counts), "a")
    finally:
        torch.set_num_threads(before)
    rows = [row for count, end in zip(counts, ends, strict=True) for row in (end - count, end - 1)]
    assert torch.equal(out[rows], alone[rows])
    order = torch.randperm(len(x), generator=generator)
    owner_of = [owner for owner, count in zip(owners, counts, strict=True) for _ in range(count)]
    shuffled = alone.new_empty(alone.shape)
    shuffled.copy_(alone)
    mixed = torch.randn(sum(counts), 428, generator=torch.Generator().manual_seed(2)).to(dtype)
    straight, turned = mixed.clone(), mixed[order].clone()
    kernels.adapt_linear(x, straight, plan_of(arena, owner_of, [1] * len(x)), "a")
    kernels.adapt_linear(x[order], turned, plan_of(arena, [owner_of[row] for row in order], [1] * len(x)), "a")
    assert torch.equal(turned, straight[order])


def test_an_embedding_is_the_same_bits_in_any_batch(built: str) -> None:
    arena = Arena(
        [layout(torch.bfloat16, (8, 0, 0), embedding=rank, scale=True) for rank in (8, 24)], torch.bfloat16, 0
    )
    tokens, out = torch.arange(VOCABULARY), torch.randn(VOCABULARY, WIDTH).bfloat16()
    owners = [(*arena.adapters, None)[token % 3] for token in range(VOCABULARY)]
    alone = out.clone()
    for token, owner in enumerate(owners):
        if owner is not None:
            kernels.adapt_embedding(tokens[token : token + 1], alone[token : token + 1], plan_of(arena, [owner], [1]))
    kernels.adapt_embedding(tokens, out, plan_of(arena, owners, [1] * VOCABULARY))
    assert torch.equal(out, alone)


def test_the_ops_keep_torchs_rules(built: str) -> None:
    arena = Arena([layout(torch.float32, (8, 16, 8), embedding=8)], torch.float32, 0)
    plan = plan_of(arena, arena.adapters, [2])
    assert isinstance(plan, TablePlan)
    out, x = torch.randn(2, sum(SIZES)), torch.randn(2, WIDTH)
    # Tables are read by the op itself, so their numbers have to be true ones; torch's test leaves them alone.
    torch.library.opcheck(
        torch.ops.roundhouse.adapt_linear.default,
        (out, x, plan.arena, plan.tables.table, plan.segments, plan.scratch, site_number("a")),
    )
    embedded, tokens = torch.randn(2, WIDTH), torch.tensor([1, 0])
    torch.library.opcheck(
        torch.ops.roundhouse.adapt_embedding.default,
        (embedded, tokens, plan.arena, plan.tables.table, plan.segments, plan.scratch, site_number("embedding")),
    )


def test_a_wrong_argument_is_named(isa: str) -> None:
    body = library.cpu
    assert body is not None
    arena = Arena([layout(torch.float32, (8, 16, 8))], torch.float32, 0)
    plan = plan_of(arena, arena.adapters, [2])
    assert isinstance(plan, TablePlan)
    tables, site = plan.tables.table, site_number("a")
    out, x = torch.randn(2, sum(SIZES)), torch.randn(2, WIDTH)
    with pytest.raises(ValueError, match="x has 23 columns instead of 24"):
        body.adapt_linear(out, x[:, 1:].contiguous(), arena.memory, tables, plan.segments, plan.scratch, site)
    with pytest.raises(ValueError, match="out has 31 columns instead of 32"):
        body.adapt_linear(out[:, 1:].contiguous(), x, arena.memory, tables, plan.segments, plan.scratch, site)
    with pytest.raises(ValueError, match="a row that out does not have"):
        body.adapt_linear(out[:1], x[:1], arena.memory, tables, plan.segments, plan.scratch, site)
    with pytest.raises(ValueError, match="scratch has 63 elements instead of 64"):
        body.adapt_linear(out, x, arena.memory, tables, plan.segments, plan.scratch[1:], site)
    with pytest.raises(ValueError, match="x has another type"):
        body.adapt_linear(out, x, arena.memory.bfloat16(), tables, plan.segments, plan.scratch, site)
