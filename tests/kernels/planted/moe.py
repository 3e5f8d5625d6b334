"""Planted faults of mixtures of experts."""

from __future__ import annotations

import math

import torch

from kernels import library, reference
from kernels.formats.cuda import GROUP, pack_int4
from tests.kernels.faults import Case, Fault
from tests.kernels.test_moe_cuda import experts_of


def route(body: library.Library) -> torch.Tensor:
    """Choose experts; between the results is memory that a fault may write to."""
    torch.manual_seed(0)
    tokens, experts, k = 150, 40, 3
    logits, memory = torch.rand(tokens, experts).argsort(1).float(), torch.full((5, 1000), -1)
    shapes = ((tokens, k), (tokens * k,), (tokens, k), (tokens * k,), (experts,))
    numbers = [line[100:][: math.prod(shape)].view(shape) for line, shape in zip(memory, shapes, strict=True)]
    found = reference.ExpertRouting(torch.full((tokens, k), torch.nan), *numbers)
    body.route_tokens(*found, logits)
    wanted = reference.route_tokens(logits, k)
    torch.testing.assert_close(found.weights, wanted.weights, rtol=1e-5, atol=1e-7)
    for mine, theirs in zip(found[1:], wanted[1:], strict=True):
        assert torch.equal(mine, theirs)
    return found.weights


def grouped(body: library.Library) -> torch.Tensor:
    """Multiply few and many rows, with more stages than there are, and a row and an output that are NaN."""
    results = []
    for counts in ([3, 0, 17, 20, *[0] * 36, 2, 1], [3, 70, 0, 20]):
        x, weights, ends, wanted, reach = experts_of(counts, 130, 520, 0)
        x[5], weights[2, 7] = torch.nan, torch.nan
        # Behind everything is memory that a fault may read or write.
        x, weights = (
            torch.cat((tensor, tensor.new_full((64, *tensor.shape[1:]), torch.nan))) for tensor in (x, weights)
        )
        memory = torch.full((len(x), 130), torch.nan, dtype=torch.bfloat16)
        found = memory[:-64]
        body.grouped_linear(found, x[:-64], weights[:-64], ends)
        assert memory[-64:].isnan().all()
        expert = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        nothing = torch.zeros_like(wanted, dtype=torch.bool)
        nothing[5], nothing[expert == 2, 7] = True, True
        assert torch.equal(found.isnan(), nothing)
        assert ((found.double() - wanted).abs() <= 2**-8 * wanted.abs() + 1e-6 * reach)[~nothing].all()
        results.append(found.nan_to_num())
    return torch.cat(results)


def grouped_int4(body: library.Library) -> torch.Tensor:
    """Multiply with several experts' weights one behind the other, for few rows and for many."""
    torch.manual_seed(0)
    inputs, outputs, results = 9 * GROUP + 8, 40, []
    levels, steps = torch.randint(16, (4, outputs, inputs)), torch.rand(4, outputs, 10).bfloat16()
    packed = [pack_int4(*each, -8 * each[1]) for each in zip(levels, steps, strict=True)]
    tiles, scales = (torch.cat(parts) for parts in zip(*packed, strict=True))
    weights = steps.repeat_interleave(GROUP, 2)[..., :inputs].double() * (levels - 8)
    for counts in ([3, 0, 9, 1], [40, 0, 33, 1]):
        x, ends = torch.randn(sum(counts), inputs).bfloat16(), torch.tensor(counts).cumsum(0)
        memory = torch.full((len(x) + 32, outputs), torch.nan, dtype=torch.bfloat16)
        body.grouped_linear_int4(memory[:-32], x, tiles, scales, ends)
        parts = zip(x.double().split(counts), weights, strict=True)
        wanted = torch.cat([rows @ weight.T for rows, weight in parts])
        torch.testing.assert_close(memory[:-32].double(), wanted, rtol=2**-6, atol=2.0)
        assert memory[-32:].isnan().all()
        results.append(memory[:-32])
    return torch.cat(results)


_FUNCTIONS = ["route_tokens", "grouped_linear"]
CASES = {
    "route": Case("moe", _FUNCTIONS, route),
    "grouped": Case("moe", _FUNCTIONS, grouped),
    "grouped int4": Case("linear", ["grouped_linear_int4"], grouped_int4),
}

FAULTS = {
    "route": [
        Fault(
            "no barrier before the counts are read",
            "moe/route.cuh",
            "      shared.own[warp] = own;\n    }\n    __syncthreads();",
            "      shared.own[warp] = own;\n    }",
        ),
        Fault("pairs of the warps before not counted", "moe/route.cuh", "i < warp ? shared.own[i] : 0", "0"),
        Fault("pairs over each other", "moe/route.cuh", "votes & ((1u << lane) - 1)", "votes & ((1u << lane) - 2)"),
        Fault("an expert chosen twice", "moe/route.cuh", "if ((taken >> i & 1) != 0) continue;", ""),
        Fault("lanes that see other experts", "moe/route.cuh", "best = reduce_warp(best, Max());", ""),
    ],
    "grouped": [
        Fault(
            "waits for one copy too few", "moe/grouped.cuh", "cp_async_wait<kStages - 2>", "cp_async_wait<kStages - 1>"
        ),
        Fault(
            "no barrier around stages",
            "moe/grouped.cuh",
            "__syncthreads();  // the stage is there",
            ";  // the stage is there",
        ),
        Fault("loads into the stage in use", "moe/grouped.cuh", "load(step + kStages - 1);", "load(step + kStages);"),
        Fault(
            "no barrier after the search",
            "moe/grouped.cuh",
            "shared.tile);\n    __syncthreads();",
            "shared.tile);",
        ),
        Fault("rows of the next expert", "moe/tile.cuh", "min(first + kRows, end)", "first + kRows"),
        Fault(
            "another row's inputs beyond the end",
            "moe/grouped.cuh",
            "tile.first + row < tile.end && input < p.inputs",
            "tile.first + row < tile.end",
        ),
        Fault(
            "another output's inputs beyond the end",
            "moe/grouped.cuh",
            "first_output + row < p.outputs && input < p.inputs",
            "first_output + row < p.outputs",
        ),
        Fault(
            "tiles counted in the wrong order of lanes",
            "moe/tile.cuh",
            "if (lane >= distance) tiles += more;",
            "if (lane > distance) tiles += more;",
        ),
        Fault(
            "experts beyond a warp forgotten",
            "moe/tile.cuh",
            "before += __shfl_sync(kAllLanes, tiles, kWarp - 1);",
            "",
        ),
        Fault(
            "rows swizzled otherwise",
            "moe/grouped.cuh",
            "lane % 16, 2 * k + lane / 16",
            "lane % 16, 2 * k + 1 - lane / 16",
        ),
    ],
    "grouped int4": [
        Fault(
            "no barrier after the search",
            "linear/quantized.cuh",
            "shared.tile);\n    __syncthreads();",
            "shared.tile);",
        ),
        Fault(
            "weights of the first expert", "linear/quantized.cuh", "tile.expert * p.tiles_stride", "0 * p.tiles_stride"
        ),
        Fault(
            "steps of the first expert", "linear/quantized.cuh", "tile.expert * p.scales_stride", "0 * p.scales_stride"
        ),
        Fault("rows of the next expert", "linear/quantized.cuh", "own.rows = tile.end;", ""),
    ],
}
"""Faults by case."""
