"""The CUDA bodies of the LoRA ops, under the emulator and on CUDA: sizes around those of their tiles, against fp64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import LoraAdapter, library
from kernels.lora.tables import LoraTables, TablePlan, plan_rows, site_number
from tests.kernels.conftest import Body
from tests.kernels.lora_arenas import EXPERTS, SIZES, WIDTH, Arena, layout
from tests.kernels.test_lora_bodies import expected, wide

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
HEADER = 4


def plan_of(arena: Arena, adapters: Sequence[LoraAdapter | None], counts: Sequence[int]) -> TablePlan:
    """With scratch memory that is NaN."""
    distinct = dict.fromkeys(adapter for adapter in adapters if adapter is not None)
    memory = arena.memory
    plan = plan_rows(memory, LoraTables.of(distinct, memory.dtype, memory.device), adapters, np.array(counts))
    assert plan is not None and plan.segments.ndim == 2
    plan.scratch.fill_(torch.nan)
    return plan


def adapt(body: library.Library, out: torch.Tensor, x: torch.Tensor, plan: TablePlan, segments: torch.Tensor) -> None:
    body.adapt_linear(out, x, plan.arena, plan.tables.table, segments, plan.scratch, site_number("a"))


def arena_on(device: torch.device, arena: Arena) -> Arena:
    arena.memory = arena.memory.to(device)
    arena.adapters = [LoraAdapter(one.layout, one.sectors.to(device)) for one in arena.adapters]
    return arena


@DTYPES
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    width=st.sampled_from([8, 100, 120, 136, 1016, 1024, 1032, 2056]),
    sizes=st.sampled_from([(8,), (64,), (24, 40), (512, 8), (7, 120, 65), (513, 64)]),
    rank=st.sampled_from([8, 24, 32, 40, 64, 72]),
    affine=st.booleans(),
    rows=st.sampled_from([1, 8, 9, 16, 17, 63, 64, 65]),
    sector=st.sampled_from([64, 1032, 1 << 16]),
    seed=st.integers(0, 99),
)
def test_rows_are_those_of_fp64(
    body: Body,
    dtype: torch.dtype,
    width: int,
    sizes: tuple[int, ...],
    rank: int,
    affine: bool,
    rows: int,
    sector: int,
    seed: int,
) -> None:
    ranks = [0 if part == seed % 4 and len(sizes) > 1 else rank for part in range(len(sizes))]
    arena = arena_on(body[1], Arena([wide(dtype, width, sizes, ranks, affine)], dtype, seed, sector))
    torch.manual_seed(seed)
    x, out = (torch.randn(rows + 2, size).to(body[1], dtype) for size in (width, sum(sizes)))
    out[0], out[-1] = torch.nan, torch.nan
    before, wanted = out.clone(), expected(x[1:-1], out[1:-1], arena, arena.adapters[0])
    plan = plan_of(arena, [None, arena.adapters[0], None], [1, rows, 1])
    adapt(body[0], out, x, plan, plan.segments)
    assert out[0].isnan().all() and out[-1].isnan().all()
    # Logits are fp32, and get the same sums without the last rounding.
    in_fp32 = before.to(torch.float32, copy=True)
    adapt(body[0], in_fp32, x, plan, plan.segments)
    assert torch.equal(in_fp32[1:-1].to(dtype), out[1:-1])
    assert in_fp32[0].isnan().all() and in_fp32[-1].isnan().all()
    tolerance = {torch.float32: 3e-6 * (width * rank) ** 0.5, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(out[1:-1].double(), wanted, rtol=tolerance, atol=tolerance)
    for part, size in enumerate(sizes):
        columns = slice(sum(sizes[:part]), sum(sizes[:part]) + size)
        if ranks[part] == 0 and not affine:
            assert torch.equal(out[1:-1, columns].view(torch.int8), before[1:-1, columns].view(torch.int8))


@DTYPES
def test_how_rows_are_cut_into_tiles_does_not_matter(body: Body, dtype: torch.dtype) -> None:
    """Small tiles, large ones, ones with few rows, and none; what is behind the rows of a tile is not read."""
    arena = arena_on(body[1], Arena([wide(dtype, 1100, (300, 64), (40, 16), False)], dtype, 0, 1032))
    x, out = (torch.randn(100, size).to(body[1], dtype) for size in (1100, 364))
    plan = plan_of(arena, arena.adapters, [100])
    results = []
    for size, cuts in [(64, [64, 36]), (16, [16] * 6 + [4]), (64, [1, 0, 50, 40, 9]), (16, [5] * 20)]:
        tiles = torch.full((len(cuts), HEADER + size), 1 << 30, dtype=torch.int32)
        first = 0
        for tile, count in zip(tiles, cuts, strict=True):
            tile[:HEADER] = torch.tensor([0, count, 0, 0])
            tile[HEADER : HEADER + count] = torch.arange(first, first + count)
            first += count
        results.append(out.clone())
        adapt(body[0], results[-1], x, plan, tiles.to(body[1]))
    for other in results[1:]:
        assert torch.equal(other, results[0])


def test_what_is_between_the_products_is_not_rounded_to_bf16(body: Body) -> None:
    """257 has nine digits, one more than a bf16."""
    one = wide(torch.bfloat16, 16, (8,), (8,), False)
    arena = Arena([one], torch.bfloat16, 0, 1 << 16)
    (sector,) = arena.adapters[0].sectors
    arena.memory[sector, : one.elements] = 0
    arena.memory[sector, one.sites["a"].parts[0].up :][:64] = 1
    arena.memory[sector, :2] = torch.tensor([256.0, 1.0])
    arena = arena_on(body[1], arena)
    out = torch.full((1, 8), -256.0, device=body[1]).bfloat16()
    plan = plan_of(arena, arena.adapters, [1])
    adapt(body[0], out, torch.ones(1, 16, device=body[1]).bfloat16(), plan, plan.segments)
    assert (out == 1).all()


@DTYPES
def test_a_row_that_is_no_number_stays_alone(body: Body, dtype: torch.dtype) -> None:
    arena = arena_on(body[1], Arena([wide(dtype, 1100, (72,), (24,), False)], dtype, 0))
    x, out = (torch.randn(20, size).to(body[1], dtype) for size in (1100, 72))
    x[0] = torch.nan
    plan = plan_of(arena, arena.adapters, [20])
    adapt(body[0], out, x, plan, plan.segments)
    assert out[0].isnan().all() and out[1:].isfinite().all()


def test_a_tile_that_does_not_fit_stops_the_kernel(emulator: library.Library) -> None:
    arena = Arena([layout(torch.float32, (8, 16, 8), experts=8)], torch.float32, 0)
    plan = plan_of(arena, arena.adapters, [2])
    x, out = torch.randn(2, WIDTH), torch.randn(2, sum(SIZES))

    def run(x: torch.Tensor, out: torch.Tensor, segments: torch.Tensor, scratch: torch.Tensor) -> None:
        emulator.adapt_linear(out, x, plan.arena, plan.tables.table, segments, scratch, site_number("a"))

    run(x, out, plan.segments, plan.scratch)
    for bad in (
        (x[:, 1:].contiguous(), out, plan.segments, plan.scratch),
        (x, out[:, 1:].contiguous(), plan.segments, plan.scratch),
        (x[:1], out[:1], plan.segments, plan.scratch[:1]),
        (x, out, plan.segments, plan.scratch[:, :31].contiguous()),
    ):
        with pytest.raises(RuntimeError, match="trapped"):
            run(*bad)
    chosen = torch.tensor([[0, 1], [EXPERTS - 1, 0]])
    split = torch.empty(EXPERTS, plan.segments.shape[1], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="trapped"):
        emulator.adapt_experts(
            torch.randn(2, sum(SIZES)), x, plan.arena, plan.tables.table, plan.segments, plan.scratch,
            site_number("e"), chosen[:1], torch.zeros(1, 2, dtype=torch.long), split, EXPERTS,
        )  # fmt: skip


def test_a_wrong_argument_is_named(body: Body) -> None:
    arena = arena_on(body[1], Arena([layout(torch.float32, (8, 16, 8))], torch.float32, 0))
    plan = plan_of(arena, arena.adapters, [2])
    x, out = torch.randn(2, WIDTH, device=body[1]), torch.randn(2, sum(SIZES), device=body[1])
    tensors = arena.memory, plan.tables.table, plan.segments, plan.scratch, site_number("a")
    with pytest.raises(ValueError, match="x has 1 elements in dimension 0 instead of 2"):
        body[0].adapt_linear(out, x[:1], *tensors)
    with pytest.raises(ValueError, match="out has another type"):
        body[0].adapt_linear(out.bfloat16(), x.bfloat16(), *tensors)
    with pytest.raises(ValueError, match="scratch has 1 elements in dimension 0 instead of 2"):
        body[0].adapt_linear(out, x, *tensors[:3], plan.scratch[:1], tensors[4])
    with pytest.raises(ValueError, match="segments must have tiles of 16 or 64 rows"):
        body[0].adapt_linear(out, x, *tensors[:2], plan.segments[:, 1:].contiguous(), *tensors[3:])
    with pytest.raises(ValueError, match="tokens has another type"):
        body[0].adapt_embedding(out, torch.zeros(2, device=body[1]), *tensors)
    choices = torch.zeros(1, 2, dtype=torch.long, device=body[1])
    with pytest.raises(ValueError, match="split has 1 elements in dimension 0 instead of 3"):
        body[0].adapt_experts(out, x, *tensors, choices, choices, plan.segments, 3)
