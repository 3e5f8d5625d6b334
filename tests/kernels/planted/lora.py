"""Planted faults of adapters."""

from __future__ import annotations

import torch

from kernels import library
from kernels.lora import reference as lora_reference
from kernels.lora.ops import expert_tensors
from kernels.lora.tables import site_number
from tests.kernels.faults import Case, Fault
from tests.kernels.lora_arenas import EXPERTS, SIZES, WIDTH, Arena, layout, segments
from tests.kernels.test_lora_bodies import expected, wide
from tests.kernels.test_lora_cuda import adapt
from tests.kernels.test_lora_cuda import plan_of as lora_plan


def lora(body: library.Library) -> torch.Tensor:
    """Apply adapters of several chunks, ranks and splits, two parts in one warp's columns, and a row that is NaN."""
    arena = Arena([wide(torch.bfloat16, 1096, (24, 300), (72, 24), True)] * 2, torch.bfloat16, 0, 1032)
    generator = torch.Generator().manual_seed(0)
    x, out = (torch.randn(22, size, generator=generator).bfloat16() for size in (1096, 324))
    x[0] = torch.nan
    counts = [20, 1, 1]
    plan = lora_plan(arena, [*arena.adapters, None], counts)
    before = out.clone()
    adapt(body, out, x, plan, plan.segments)
    assert torch.equal(out[21:], before[21:]) and out[0].isnan().all()
    for rows, adapter in ((slice(1, 20), arena.adapters[0]), (slice(20, 21), arena.adapters[1])):
        wanted = expected(x[rows], before[rows], arena, adapter)
        torch.testing.assert_close(out[rows].double(), wanted, rtol=2**-7, atol=2**-3)
    # A number between the two products that bf16 does not have.
    small = Arena([wide(torch.bfloat16, 16, (8,), (8,), False)], torch.bfloat16, 0, 1 << 16)
    image = small.memory[small.adapters[0].sectors[0]]
    image[: 16 * 8] = 0
    image[:2] = torch.tensor([256.0, 1.0])
    image[16 * 8 :][:64] = 1
    exact = torch.full((1, 8), -256.0).bfloat16()
    one = lora_plan(small, small.adapters, [1])
    adapt(body, exact, torch.ones(1, 16).bfloat16(), one, one.segments)
    assert (exact == 1).all()
    return out.nan_to_num()


def lora_experts(body: library.Library) -> torch.Tensor:
    arena = Arena([layout(torch.float32, (), experts=rank) for rank in (8, 16)], torch.float32, 0)
    generator = torch.Generator().manual_seed(0)
    adapters, counts, tokens = [*arena.adapters, None], [17, 3, 2], 22
    experts = torch.stack([torch.randperm(EXPERTS, generator=generator)[:2] for _ in range(tokens)])
    places = torch.randperm(2 * tokens, generator=generator).view(tokens, 2)
    x, out = (torch.randn(2 * tokens, width, generator=generator) for width in (WIDTH, sum(SIZES)))
    wanted = out.clone()
    lora_reference.adapt_experts(x, wanted, arena.memory, segments(adapters, counts), "e", experts, places)
    plan = lora_plan(arena, adapters, counts)
    scratch, split = expert_tensors(plan.segments, plan.scratch, experts, EXPERTS)
    tensors = arena.memory, plan.tables.table, plan.segments, scratch.fill_(torch.nan)
    body.adapt_experts(out, x, *tensors, site_number("e"), experts, places, split.fill_(-1), EXPERTS)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-4)
    return out


_FUNCTIONS = ["adapt_linear", "adapt_experts"]
CASES = {
    "lora": Case("lora", _FUNCTIONS, lora),
    "lora of experts": Case("lora", _FUNCTIONS, lora_experts),
}

FAULTS = {
    "lora": [
        Fault(
            "no barrier before the slices are added",
            "lora/shrink.cuh",
            "leave(shared, sums);\n    __syncthreads();",
            "leave(shared, sums);",
        ),
        Fault("a slice left out", "lora/shrink.cuh", "slice < kWarps; ++slice", "slice < kWarps - 1; ++slice"),
        Fault(
            "another row's inputs beyond the end",
            "lora/shrink.cuh",
            "keep_if(inside, *reinterpret",
            "keep_if(row >= 0, *reinterpret",
        ),
        Fault("ranks of another part", "lora/shrink.cuh", "rank -= (span++)->rank;", "rank -= span->rank;"),
        Fault("rows of another half", "lora/shrink.cuh", "x[0].y, x[1].y}", "x[1].y, x[0].y}"),
        Fault(
            "no barrier before the next ranks",
            "lora/expand.cuh",
            "__syncthreads();  // the ranks before",
            ";  // the ranks before",
        ),
        Fault(
            "no barrier after the splits are added",
            "lora/expand.cuh",
            "first_row, shared);\n      __syncthreads();",
            "first_row, shared);",
        ),
        Fault("a split left out", "lora/expand.cuh", "split < splits; ++split", "split < splits - 1; ++split"),
        Fault("no zeros behind the ranks", "lora/expand.cuh", "row >= 0 && rank < count", "row >= 0"),
        Fault(
            "ranks loaded one product too late",
            "lora/expand.cuh",
            "first + rank + Product::kRanks);",
            "first + rank);",
        ),
        Fault("lower digits forgotten", "lora/expand.cuh", "ptx::mma_bf16(sums[j], low, columns);", ""),
        Fault("columns of the part before", "lora/expand.cuh", "first + i < span.begin || first", "first"),
        Fault(
            "a sector too early",
            "lora/tables.cuh",
            "pages_[page] * sector_ + chunk % sector_",
            "pages_[0] * sector_ + chunk % sector_",
        ),
    ],
    "lora of experts": [
        Fault(
            "rows of an expert over each other",
            "lora/split.cuh",
            "votes & ((1u << lane) - 1)",
            "votes & ((1u << lane) - 2)",
        ),
        Fault("rows beyond the tile", "lora/split.cuh", "chosen = p.experts[pair] == expert;", "chosen = true;"),
        Fault("the first rows only", "lora/split.cuh", "found += __popc(votes);", "found = __popc(votes);"),
        Fault(
            "weights of the first expert", "lora/expand.cuh", "(expert * span.rank + rank) * columns", "rank * columns"
        ),
    ],
}
"""Faults by case."""
