"""The schedules of the emulator: sound kernels do not depend on them, and planted faults show under some.

Each fault compiles one CUDA source anew, which takes a few seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels import library, reference
from kernels.lora import reference as lora_reference
from kernels.lora.bodies import expert_tensors
from kernels.lora.tables import site_number
from kernels.packing_cuda import GROUP, pack_int4
from tests.kernels.faults import Fault, check, compile_with
from tests.kernels.lora_arenas import EXPERTS, SIZES, WIDTH, Arena, layout, segments
from tests.kernels.paged import SPLIT, batch
from tests.kernels.test_lora_bodies import expected, wide
from tests.kernels.test_lora_cuda import adapt
from tests.kernels.test_lora_cuda import plan_of as lora_plan
from tests.kernels.test_moe_cuda import experts_of


def rms_norm(body: library.Library) -> torch.Tensor:
    """Of a block per row. What a fault may read or write beside the rows is still the tensors' memory."""
    torch.manual_seed(0)
    width, reach = 1160, 32 * 256
    memory = torch.full((3, reach), torch.nan)
    memory[:, :width] = torch.randn(3, width)
    (x, weight), out = (memory[:2, :width], memory[2, :width]), torch.full((2 * width + reach,), torch.nan)
    found = out[: 2 * width].view(2, width)
    body.rms_norm(found, x, weight, 1e-5)
    torch.testing.assert_close(found, torch.nn.functional.rms_norm(x, (width,), weight, 1e-5))
    assert out[2 * width :].isnan().all()
    return found


def decode(body: library.Library) -> torch.Tensor:
    """Rows of several tiles and splits, with and without a window."""
    plain = attention(body, [(SPLIT + 200, 1), (63, 2), (SPLIT - 1, 1)], 0)
    return torch.cat((plain, attention(body, [(2 * SPLIT + 100, 1), (100, 1)], 150)))


def prefill(body: library.Library) -> torch.Tensor:
    plain = attention(body, [(SPLIT - 40, 50), (1, 1), (2 * SPLIT - 9, 20)], 0)
    return torch.cat((plain, attention(body, [(SPLIT + 60, 40)], 90)))


def stored_in_int8(body: library.Library) -> torch.Tensor:
    """Rows of few and of many queries."""
    return attention(body, [(SPLIT + 90, 1), (30, 50)], 130, torch.bfloat16, torch.int8)


def stored_in_fp8(body: library.Library) -> torch.Tensor:
    return attention(body, [(SPLIT + 90, 1), (30, 50)], 130, torch.bfloat16, torch.float8_e4m3fn)


def in_fp32(body: library.Library) -> torch.Tensor:
    plain = attention(body, [(SPLIT + 90, 1), (SPLIT - 20, 50), (7, 2)], 0, torch.float32, torch.float32, 42)
    return torch.cat((plain, attention(body, [(2 * SPLIT + 10, 1), (40, 20)], 75, torch.float32, torch.int8, 42)))


def attention(
    body: library.Library,
    rows: list[tuple[int, int]],
    window: int,
    dtype: torch.dtype = torch.bfloat16,
    stored: torch.dtype = torch.bfloat16,
    dim: int = 64,
) -> torch.Tensor:
    one = batch(rows, 4, 2, dim, window, dtype=dtype, stored=stored)
    found = one.run(body)
    tolerance = 2**-7 if dtype == torch.bfloat16 else 5e-6
    torch.testing.assert_close(found.double(), one.expected(), rtol=tolerance, atol=tolerance)
    return found


def rope(body: library.Library) -> torch.Tensor:
    """Into int8: what is stored is near what plain torch computes, and what is not a slot stays."""
    torch.manual_seed(0)
    tokens, dim = 5, 20
    heads = torch.randn(tokens, 7, dim)
    query, key, value = heads.split([3, 2, 2], 1)
    table, places, slots = torch.randn(9, dim), torch.randint(9, (tokens,)), torch.randperm(32)[:tokens]
    caches = [torch.zeros(2, 16, 2, dim, dtype=torch.int8) for _ in range(2)]
    scales = [torch.full((2, 2, 16), 7.0).transpose(1, 2) for _ in range(2)]
    expected = [x.clone() for x in (query, key, value, *caches, *scales)]
    reference.rope_and_store(*expected[:3], table, places, *expected[3:5], slots, *expected[5:])
    body.rope_and_store(query, key, value, table, places, *caches, *scales, slots)
    found = [query, *caches, *scales]
    for ours, theirs in zip(found, [expected[0], *expected[3:]], strict=True):
        assert torch.equal(ours, theirs)
    return torch.cat([x.float().flatten() for x in found])


def linear_int4(body: library.Library) -> torch.Tensor:
    """Of more groups than a slice has stages; beyond the rows' ends are no numbers."""
    torch.manual_seed(0)
    inputs, outputs = 41 * GROUP + 8, 40
    x = torch.full((17, inputs + GROUP), torch.nan, dtype=torch.bfloat16)[:, :inputs]
    x.copy_(torch.randn(17, inputs))
    levels, steps = torch.randint(16, (outputs, inputs)), torch.rand(outputs, 42).bfloat16()
    packed = pack_int4(levels, steps, -8 * steps)
    weight = torch.full((outputs, inputs), torch.nan, dtype=torch.bfloat16)
    body.dequantize_int4(weight, *packed)
    assert not weight.isnan().any()
    out = torch.full((17, outputs), torch.nan, dtype=torch.bfloat16)
    body.linear_int4(out, x, *packed, None)
    torch.testing.assert_close(out.double(), x.double() @ weight.double().T, rtol=2**-7, atol=0.5)
    return out


def sample(body: library.Library) -> torch.Tensor:
    torch.manual_seed(0)
    logits = torch.randn(6, 300).bfloat16()
    draws = torch.tensor(
        [[1, 0, 1, 0], [0.7, 20, 1, 0], [1, 0, 0.8, 0], [1, 40, 0.9, 0.01], [0, 0, 1, 0], [2, 1, 1, 0]]
    )
    table = torch.cat((draws, torch.tensor([[0.9], [0.5], [0.7], [0.3], [0.5], [0.6]])), 1).double()
    tokens = torch.full((6,), -1)
    body.sample(tokens, logits, table)
    assert torch.equal(tokens, reference.sample(logits, table))
    return tokens


def lora(body: library.Library) -> torch.Tensor:
    """Of several chunks, ranks and splits, two parts in one warp's columns, and a row that is no number."""
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


def route(body: library.Library) -> torch.Tensor:
    """Between the results is memory that a fault may write to."""
    torch.manual_seed(0)
    tokens, experts, k = 150, 40, 3
    logits, memory = torch.rand(tokens, experts).argsort(1).float(), torch.full((5, 1000), -1)
    shapes = ((tokens, k), (tokens * k,), (tokens, k), (tokens * k,), (experts,))
    numbers = [line[100:][: math.prod(shape)].view(shape) for line, shape in zip(memory, shapes, strict=True)]
    found = reference.Routing(torch.full((tokens, k), torch.nan), *numbers)
    body.route_tokens(*found, logits)
    wanted = reference.route_tokens(logits, k)
    torch.testing.assert_close(found.weights, wanted.weights, rtol=1e-5, atol=1e-7)
    for mine, theirs in zip(found[1:], wanted[1:], strict=True):
        assert torch.equal(mine, theirs)
    return found.weights


def grouped(body: library.Library) -> torch.Tensor:
    """Of few and of many rows, more stages than there are, and a row and an output that are no numbers."""
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
    """Of several experts' weights one behind the other, for few rows and for many."""
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


Case = tuple[str, list[str], Callable[[library.Library], torch.Tensor]]
_MOE = ("moe", ["route_tokens", "grouped_linear"])
_LORA = ("lora", ["adapt_linear", "adapt_experts"])
_ATTENTION = ("attention", ["paged_attention", "paged_attention_scratch"])
CASES: dict[str, Case] = {
    "norm": ("norm", ["rms_norm"], rms_norm),
    "decode": (*_ATTENTION, decode),
    "prefill": (*_ATTENTION, prefill),
    "int8 KV": ("attention_int8", _ATTENTION[1], stored_in_int8),
    "fp8 KV": ("attention_fp8", _ATTENTION[1], stored_in_fp8),
    "fp32": ("attention_fp32", _ATTENTION[1], in_fp32),
    "rope": ("rope", ["rope_and_store"], rope),
    "sample": ("sampling", ["sample"], sample),
    "route": (*_MOE, route),
    "grouped": (*_MOE, grouped),
    "grouped int4": ("linear", ["grouped_linear_int4"], grouped_int4),
    "lora": (*_LORA, lora),
    "lora of experts": (*_LORA, lora_experts),
    "int4": ("linear", ["linear_int4", "dequantize_int4"], linear_int4),
}
"""By name: the source, its functions, and a run that checks its result."""

FAULTS = [
    ("norm", Fault("no barrier", "tile/reduce.cuh", "  __syncthreads();\n", "")),
    (
        "norm",
        Fault(
            "a barrier that some threads skip",
            "tile/reduce.cuh",
            "shared[warp_of_thread()] = value;\n  __syncthreads();",
            "shared[warp_of_thread()] = value, __syncthreads();",
            message="wait for others that never come",
        ),
    ),
    (
        "norm",
        Fault(
            "lanes left out",
            "tile/reduce.cuh",
            "distance = kLanes / 2; distance > 0",
            "distance = kLanes / 2; distance > 1",
        ),
    ),
    (
        "norm",
        Fault(
            "no tail", "norm.cuh", "      if (at >= p.width) continue;\n      const V weight", "      const V weight"
        ),
    ),
    (
        "norm",
        Fault(
            "shared memory too small",
            "norm.cuh",
            "kThreadsOfRow;\n  static constexpr size_t kSharedBytes = sizeof",
            "kThreadsOfRow;\n  static constexpr size_t kSharedBytes = 0 * sizeof",
            message="written beyond its end",
        ),
    ),
    (
        "decode",
        Fault(
            "waits for one copy too few",
            "attention/decode.cuh",
            "cp_async_wait<kStages - 2>",
            "cp_async_wait<kStages - 1>",
        ),
    ),
    (
        "decode",
        Fault(
            "no barrier around tiles",
            "attention/decode.cuh",
            "      __syncthreads();  // the tile is there",
            "      // the tile is there",
        ),
    ),
    (
        "decode",
        Fault(
            "no barrier around scores",
            "attention/decode.cuh",
            "    __syncthreads();\n#pragma unroll\n    for (int n = 0; n < kTile / 8; ++n) {",
            "#pragma unroll\n    for (int n = 0; n < kTile / 8; ++n) {",
        ),
    ),
    (
        "decode",
        Fault(
            "loads into the stage in use", "attention/decode.cuh", "load(tile + kStages - 1);", "load(tile + kStages);"
        ),
    ),
    (
        "decode",
        Fault(
            "no zeros for values that are not seen",
            "attention/tile.cuh",
            "cache.values + from, inside)",
            "cache.values + from, true)",
        ),
    ),
    (
        "decode",
        Fault(
            "values swizzled otherwise",
            "attention/tile.cuh",
            "at(16 * k + row, first / 8 + n + half)",
            "at(16 * k + (row ^ 1), first / 8 + n + half)",
        ),
    ),
    (
        "decode",
        Fault(
            "keys of the tail not hidden",
            "attention/tile.cuh",
            "key >= visible.begin && key < visible.end ?",
            "key >= visible.begin ?",
        ),
    ),
    (
        "decode",
        Fault(
            "keys before the window not hidden",
            "attention/tile.cuh",
            "key >= visible.begin && key < visible.end ?",
            "key < visible.end ?",
        ),
    ),
    (
        "decode",
        Fault("splits not ended", "attention/decode.cuh", "visible.end = min(visible.end, (split + 1) * kSplit);", ""),
    ),
    (
        "decode",
        Fault(
            "merges splits that nobody computed", "attention/merge.cuh", "begin = visible.begin / kSplit", "begin = 0"
        ),
    ),
    ("decode", Fault("sums of a lane instead of a row", "attention/decode.cuh", "softmax.finish();\n", "")),
    ("decode", Fault("does not rescale what came before", "tile/softmax.cuh", "scale(row, factor);", "")),
    (
        "decode",
        Fault(
            "tokens of rows before not counted",
            "attention/decode.cuh",
            "row.token = tokens_before<kThreads>(p.counts, number, shared.counts);",
            "row.token = number;",
        ),
    ),
    ("prefill", Fault("does not wait for copies", "attention/prefill.cuh", "cp_async_wait<0>", "cp_async_wait<1>")),
    (
        "prefill",
        Fault(
            "no barrier around tiles",
            "attention/prefill.cuh",
            "      __syncthreads();  // the tile is there",
            "      // the tile is there",
        ),
    ),
    (
        "prefill",
        Fault(
            "no barrier after the search",
            "attention/prefill.cuh",
            "shared.first);\n    __syncthreads();\n",
            "shared.first);\n",
        ),
    ),
    (
        "prefill",
        Fault(
            "sums in the wrong order of lanes",
            "attention/rows.cuh",
            "if (lane >= distance) {",
            "if (lane > distance) {",
        ),
    ),
    (
        "prefill",
        Fault("forgets the splits before", "attention/prefill.cuh", "if (any) take_merged", "if (false) take_merged"),
    ),
    (
        "int8 KV",
        Fault(
            "scales of keys that are not seen",
            "attention/tile.cuh",
            "cache.value_scales) + from, inside);",
            "cache.value_scales) + from, true);",
        ),
    ),
    ("int8 KV", Fault("no scales of keys", "attention/tile.cuh", "scores[n][2 * half + 1] *= pair.y;", "")),
    ("int8 KV", Fault("scales of other values", "attention/tile.cuh", "of_pair(2 * k + n)", "of_pair(2 * k)")),
    (
        "int8 KV",
        Fault(
            "negative numbers widened otherwise", "ptx/convert.cuh", "(word & 0x00800080u) | 0xc300c300u", "0xc300c300u"
        ),
    ),
    (
        "int8 KV",
        Fault("dimensions in bf16's order", "attention/tile.cuh", "k * 16 + (kNarrow ?", "k * 16 + (!kNarrow ?"),
    ),
    (
        "fp8 KV",
        Fault(
            "keys of the next eight",
            "attention/tile.cuh",
            "lane / 8 % 2 * 8 + lane % 8, next",
            "lane % 16 / 8 * 4 + lane % 8, next",
        ),
    ),
    (
        "fp8 KV",
        Fault(
            "odd dimensions for even ones",
            "attention/tile.cuh",
            "widen_bf16<C>(low >> 8), ptx",
            "widen_bf16<C>(low), ptx",
        ),
    ),
    ("fp8 KV", Fault("pieces on top of each other", "tile/swizzle.cuh", "row / 2 & 3", "row & 7")),
    (
        "fp8 KV",
        Fault("outputs in bf16's order", "attention/tile.cuh", "return kNarrow ? n / 2", "return !kNarrow ? n / 2"),
    ),
    (
        "fp32",
        Fault(
            "no barrier before the keys",
            "attention/fp32.cuh",
            "__syncthreads();  // the queries are there",
            "// the queries are there",
        ),
    ),
    (
        "fp32",
        Fault(
            "no barrier after the keys", "attention/fp32.cuh", "      __syncthreads();\n      weigh(", "      weigh("
        ),
    ),
    (
        "fp32",
        Fault(
            "no barrier before the values",
            "attention/fp32.cuh",
            "      __syncthreads();\n      load(params, p.cache.values",
            "      load(params, p.cache.values",
        ),
    ),
    (
        "fp32",
        Fault(
            "no barrier after the values",
            "attention/fp32.cuh",
            "      __syncthreads();\n      add_values(",
            "      add_values(",
        ),
    ),
    (
        "fp32",
        Fault(
            "values that nobody sees",
            "attention/fp32.cuh",
            "const bool inside = visible.has(first + i);",
            "const bool inside = true;",
        ),
    ),
    (
        "fp32",
        Fault(
            "keys that are not seen not hidden",
            "attention/fp32.cuh",
            ".has(first + lane) ? scores",
            ".has(first) ? scores",
        ),
    ),
    ("fp32", Fault("does not rescale what came before", "attention/fp32.cuh", "state.outputs[j] *= factor;", "")),
    (
        "fp32",
        Fault("a lane's sum for a row's", "attention/fp32.cuh", "reduce_warp(states[i].sum, Sum())", "states[i].sum"),
    ),
    ("rope", Fault("a lane's magnitude for a head's", "rope.cuh", "reduce_warp(most, Max())", "most")),
    ("rope", Fault("values turned too", "rope.cuh", "is_value ? y :", "false ? y :")),
    (
        "rope",
        Fault(
            "scales of another token",
            "rope.cuh",
            "kv_head * p.cache.scale_head_stride + place",
            "kv_head * p.cache.scale_head_stride",
        ),
    ),
    (
        "int4",
        Fault(
            "waits for one copy too few", "linear/quantized.cuh", "cp_async_wait<kStages - 1>", "cp_async_wait<kStages>"
        ),
    ),
    (
        "int4",
        Fault("loads into the stage in use", "linear/quantized.cuh", "load(i + kStages - 1);", "load(i + kStages);"),
    ),
    (
        "int4",
        Fault(
            "no barrier before the stages are overwritten",
            "linear/quantized.cuh",
            "__syncthreads();  // the stages",
            ";  // the stages",
        ),
    ),
    (
        "int4",
        Fault(
            "no barrier before the slices are added",
            "linear/quantized.cuh",
            "leave(shared.sums, sums);\n    __syncthreads();",
            "leave(shared.sums, sums);",
        ),
    ),
    ("int4", Fault("inputs beyond the end", "linear/quantized.cuh", "row < p.rows && at < p.inputs", "row < p.rows")),
    (
        "int4",
        Fault("a slice left out", "linear/quantized.cuh", "slice < kWarps; ++slice", "slice < kWarps - 1; ++slice"),
    ),
    ("int4", Fault("steps of another output", "linear/formats.cuh", "step[r % 2]", "step[r / 2]")),
    (
        "lora",
        Fault(
            "no barrier before the slices are added",
            "lora/shrink.cuh",
            "leave(shared, sums);\n    __syncthreads();",
            "leave(shared, sums);",
        ),
    ),
    ("lora", Fault("a slice left out", "lora/shrink.cuh", "slice < kWarps; ++slice", "slice < kWarps - 1; ++slice")),
    (
        "lora",
        Fault(
            "another row's inputs beyond the end",
            "lora/shrink.cuh",
            "keep_if(inside, *reinterpret",
            "keep_if(row >= 0, *reinterpret",
        ),
    ),
    ("lora", Fault("ranks of another part", "lora/shrink.cuh", "rank -= (span++)->rank;", "rank -= span->rank;")),
    ("lora", Fault("rows of another half", "lora/shrink.cuh", "x[0].y, x[1].y}", "x[1].y, x[0].y}")),
    (
        "lora",
        Fault(
            "no barrier before the next ranks",
            "lora/expand.cuh",
            "__syncthreads();  // the ranks before",
            ";  // the ranks before",
        ),
    ),
    (
        "lora",
        Fault(
            "no barrier after the splits are added",
            "lora/expand.cuh",
            "first_row, shared);\n      __syncthreads();",
            "first_row, shared);",
        ),
    ),
    ("lora", Fault("a split left out", "lora/expand.cuh", "split < splits; ++split", "split < splits - 1; ++split")),
    ("lora", Fault("no zeros behind the ranks", "lora/expand.cuh", "row >= 0 && rank < count", "row >= 0")),
    (
        "lora",
        Fault(
            "ranks loaded one product too late",
            "lora/expand.cuh",
            "first + rank + Product::kRanks);",
            "first + rank);",
        ),
    ),
    ("lora", Fault("lower digits forgotten", "lora/expand.cuh", "ptx::mma_bf16(sums[j], low, columns);", "")),
    (
        "lora",
        Fault("columns of the part before", "lora/expand.cuh", "first + i < span.begin || first", "first"),
    ),
    (
        "lora",
        Fault(
            "a sector too early",
            "lora/tables.cuh",
            "pages_[page] * sector_ + chunk % sector_",
            "pages_[0] * sector_ + chunk % sector_",
        ),
    ),
    (
        "lora of experts",
        Fault(
            "rows of an expert over each other",
            "lora/split.cuh",
            "votes & ((1u << lane) - 1)",
            "votes & ((1u << lane) - 2)",
        ),
    ),
    (
        "lora of experts",
        Fault("rows beyond the tile", "lora/split.cuh", "chosen = p.experts[pair] == expert;", "chosen = true;"),
    ),
    (
        "lora of experts",
        Fault("the first rows only", "lora/split.cuh", "found += __popc(votes);", "found = __popc(votes);"),
    ),
    (
        "lora of experts",
        Fault(
            "weights of the first expert", "lora/expand.cuh", "(expert * span.rank + rank) * columns", "rank * columns"
        ),
    ),
    (
        "route",
        Fault(
            "no barrier before the counts are read",
            "moe/route.cuh",
            "      shared.own[warp] = own;\n    }\n    __syncthreads();",
            "      shared.own[warp] = own;\n    }",
        ),
    ),
    ("route", Fault("pairs of the warps before not counted", "moe/route.cuh", "i < warp ? shared.own[i] : 0", "0")),
    (
        "route",
        Fault("pairs over each other", "moe/route.cuh", "votes & ((1u << lane) - 1)", "votes & ((1u << lane) - 2)"),
    ),
    ("route", Fault("an expert chosen twice", "moe/route.cuh", "if ((taken >> i & 1) != 0) continue;", "")),
    ("route", Fault("lanes that see other experts", "moe/route.cuh", "best = reduce_warp(best, Max());", "")),
    (
        "grouped",
        Fault(
            "waits for one copy too few", "moe/grouped.cuh", "cp_async_wait<kStages - 2>", "cp_async_wait<kStages - 1>"
        ),
    ),
    (
        "grouped",
        Fault(
            "no barrier around stages",
            "moe/grouped.cuh",
            "__syncthreads();  // the stage is there",
            ";  // the stage is there",
        ),
    ),
    (
        "grouped",
        Fault("loads into the stage in use", "moe/grouped.cuh", "load(step + kStages - 1);", "load(step + kStages);"),
    ),
    (
        "grouped",
        Fault(
            "no barrier after the search",
            "moe/grouped.cuh",
            "shared.tile);\n    __syncthreads();",
            "shared.tile);",
        ),
    ),
    ("grouped", Fault("rows of the next expert", "moe/tile.cuh", "min(first + kRows, end)", "first + kRows")),
    (
        "grouped",
        Fault(
            "another row's inputs beyond the end",
            "moe/grouped.cuh",
            "tile.first + row < tile.end && input < p.inputs",
            "tile.first + row < tile.end",
        ),
    ),
    (
        "grouped",
        Fault(
            "another output's inputs beyond the end",
            "moe/grouped.cuh",
            "first_output + row < p.outputs && input < p.inputs",
            "first_output + row < p.outputs",
        ),
    ),
    (
        "grouped",
        Fault(
            "tiles counted in the wrong order of lanes",
            "moe/tile.cuh",
            "if (lane >= distance) tiles += more;",
            "if (lane > distance) tiles += more;",
        ),
    ),
    (
        "grouped",
        Fault(
            "experts beyond a warp forgotten",
            "moe/tile.cuh",
            "before += __shfl_sync(kAllLanes, tiles, kWarp - 1);",
            "",
        ),
    ),
    (
        "grouped",
        Fault(
            "rows swizzled otherwise",
            "moe/grouped.cuh",
            "lane % 16, 2 * k + lane / 16",
            "lane % 16, 2 * k + 1 - lane / 16",
        ),
    ),
    (
        "grouped int4",
        Fault(
            "no barrier after the search",
            "linear/quantized.cuh",
            "shared.tile);\n    __syncthreads();",
            "shared.tile);",
        ),
    ),
    (
        "grouped int4",
        Fault(
            "weights of the first expert", "linear/quantized.cuh", "tile.expert * p.tiles_stride", "0 * p.tiles_stride"
        ),
    ),
    (
        "grouped int4",
        Fault(
            "steps of the first expert", "linear/quantized.cuh", "tile.expert * p.scales_stride", "0 * p.scales_stride"
        ),
    ),
    ("grouped int4", Fault("rows of the next expert", "linear/quantized.cuh", "own.rows = tile.end;", "")),
    (
        "sample",
        Fault(
            "no barrier before the histogram is read",
            "sampling/sample.cuh",
            "      __syncthreads();\n      if (threadIdx.x == 0) {",
            "      if (threadIdx.x == 0) {",
        ),
    ),
    (
        "sample",
        Fault(
            "no barrier before the histogram is filled",
            "sampling/sample.cuh",
            "shared.weights[i] = 0;\n      __syncthreads();",
            "shared.weights[i] = 0;",
        ),
    ),
    (
        "sample",
        Fault(
            "no barrier after the select",
            "sampling/sample.cuh",
            "        shared.selected = found;\n      }\n      __syncthreads();",
            "        shared.selected = found;\n      }",
        ),
    ),
    (
        "sample",
        Fault(
            "no barrier before the parts are added",
            "sampling/sample.cuh",
            "shared.sums[warp] = own;\n    __syncthreads();",
            "shared.sums[warp] = own;",
        ),
    ),
    (
        "sample",
        Fault("the weight of the parts before forgotten", "sampling/sample.cuh", "before += shared.sums[i];", ""),
    ),
]


@pytest.mark.parametrize("name", CASES)
def test_a_sound_kernel_gives_the_same_bits_under_every_schedule(emulator: library.Library, name: str) -> None:
    check(CASES[name][2], emulator)


@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=[f"{name}: {fault.name}" for name, fault in FAULTS])
def test_a_planted_fault_is_caught(emulator: library.Library, name: str, fault: Fault, tmp_path: Path) -> None:
    source, functions, run = CASES[name]
    body = compile_with(fault, source, functions, tmp_path)
    with pytest.raises((AssertionError, RuntimeError), match=fault.message):
        check(run, body)
