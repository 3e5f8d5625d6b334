"""Planted faults of attention."""

from __future__ import annotations

import torch

from kernels import library
from tests.kernels.faults import Case, Fault
from tests.kernels.paged import SPLIT, batch


def decode(body: library.Library) -> torch.Tensor:
    """Decode rows of several tiles and splits, with and without a window."""
    plain = attention(body, [(SPLIT + 200, 1), (63, 2), (SPLIT - 1, 1)], 0)
    return torch.cat((plain, attention(body, [(2 * SPLIT + 100, 1), (100, 1)], 150)))


def prefill(body: library.Library) -> torch.Tensor:
    plain = attention(body, [(SPLIT - 40, 50), (1, 1), (2 * SPLIT - 9, 20)], 0)
    return torch.cat((plain, attention(body, [(SPLIT + 60, 40)], 90)))


def stored_in_int8(body: library.Library) -> torch.Tensor:
    """Run rows of few and of many queries."""
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
    one = batch(rows, (4, 2, dim), window, dtype=dtype, stored=stored)
    found = one.run(body)
    tolerance = 2**-7 if dtype == torch.bfloat16 else 5e-6
    torch.testing.assert_close(found.double(), one.expected(), rtol=tolerance, atol=tolerance)
    return found


_FUNCTIONS = ["paged_attention", "paged_attention_scratch"]
CASES = {
    "decode": Case("attention", _FUNCTIONS, decode),
    "prefill": Case("attention", _FUNCTIONS, prefill),
    "int8 KV": Case("attention_int8", _FUNCTIONS, stored_in_int8),
    "fp8 KV": Case("attention_fp8", _FUNCTIONS, stored_in_fp8),
    "fp32": Case("attention_fp32", _FUNCTIONS, in_fp32),
}

FAULTS = {
    "decode": [
        Fault(
            "waits for one copy too few",
            "attention/decode.cuh",
            "cp_async_wait<kStages - 2>",
            "cp_async_wait<kStages - 1>",
        ),
        Fault(
            "no barrier around tiles",
            "attention/decode.cuh",
            "      __syncthreads();  // the tile is there",
            "      // the tile is there",
        ),
        Fault(
            "no barrier around scores",
            "attention/decode.cuh",
            "    __syncthreads();\n#pragma unroll\n    for (int n = 0; n < kTile / 8; ++n) {",
            "#pragma unroll\n    for (int n = 0; n < kTile / 8; ++n) {",
        ),
        Fault(
            "loads into the stage in use", "attention/decode.cuh", "load(tile + kStages - 1);", "load(tile + kStages);"
        ),
        Fault(
            "no zeros for values that are not seen",
            "attention/tile.cuh",
            "cache.values + from, inside)",
            "cache.values + from, true)",
        ),
        Fault(
            "values swizzled otherwise",
            "attention/tile.cuh",
            "at(16 * k + row, first / 8 + n + half)",
            "at(16 * k + (row ^ 1), first / 8 + n + half)",
        ),
        Fault(
            "keys of the tail not hidden",
            "attention/tile.cuh",
            "key >= visible.begin && key < visible.end ?",
            "key >= visible.begin ?",
        ),
        Fault(
            "keys before the window not hidden",
            "attention/tile.cuh",
            "key >= visible.begin && key < visible.end ?",
            "key < visible.end ?",
        ),
        Fault("splits not ended", "attention/decode.cuh", "visible.end = min(visible.end, (split + 1) * kSplit);", ""),
        Fault(
            "merges splits that nobody computed", "attention/merge.cuh", "begin = visible.begin / kSplit", "begin = 0"
        ),
        Fault("sums of a lane instead of a row", "attention/decode.cuh", "softmax.finish();\n", ""),
        Fault("does not rescale what came before", "tile/softmax.cuh", "scale(row, factor);", ""),
        Fault(
            "tokens of rows before not counted",
            "attention/decode.cuh",
            "row.token = tokens_before<kThreads>(p.counts, number, shared.counts);",
            "row.token = number;",
        ),
    ],
    "prefill": [
        Fault("does not wait for copies", "attention/prefill.cuh", "cp_async_wait<0>", "cp_async_wait<1>"),
        Fault(
            "no barrier around tiles",
            "attention/prefill.cuh",
            "      __syncthreads();  // the tile is there",
            "      // the tile is there",
        ),
        Fault(
            "no barrier after the search",
            "attention/prefill.cuh",
            "shared.first);\n    __syncthreads();\n",
            "shared.first);\n",
        ),
        Fault(
            "sums in the wrong order of lanes",
            "attention/rows.cuh",
            "if (lane >= distance) {",
            "if (lane > distance) {",
        ),
        Fault("forgets the splits before", "attention/prefill.cuh", "if (any) take_merged", "if (false) take_merged"),
    ],
    "int8 KV": [
        Fault(
            "scales of keys that are not seen",
            "attention/tile.cuh",
            "cache.value_scales) + from, inside);",
            "cache.value_scales) + from, true);",
        ),
        Fault("no scales of keys", "attention/tile.cuh", "scores[n][2 * half + 1] *= pair.y;", ""),
        Fault("scales of other values", "attention/tile.cuh", "of_pair(2 * k + n)", "of_pair(2 * k)"),
        Fault(
            "negative numbers widened otherwise", "ptx/convert.cuh", "(word & 0x00800080u) | 0xc300c300u", "0xc300c300u"
        ),
        Fault("dimensions in bf16's order", "attention/tile.cuh", "k * 16 + (kNarrow ?", "k * 16 + (!kNarrow ?"),
    ],
    "fp8 KV": [
        Fault(
            "keys of the next eight",
            "attention/tile.cuh",
            "lane / 8 % 2 * 8 + lane % 8, next",
            "lane % 16 / 8 * 4 + lane % 8, next",
        ),
        Fault(
            "odd dimensions for even ones",
            "attention/tile.cuh",
            "widen_bf16<C>(low >> 8), ptx",
            "widen_bf16<C>(low), ptx",
        ),
        Fault("pieces on top of each other", "tile/swizzle.cuh", "row / 2 & 3", "row & 7"),
        Fault("outputs in bf16's order", "attention/tile.cuh", "return kNarrow ? n / 2", "return !kNarrow ? n / 2"),
    ],
    "fp32": [
        Fault(
            "no barrier before the keys",
            "attention/fp32.cuh",
            "__syncthreads();  // the queries are there",
            "// the queries are there",
        ),
        Fault(
            "no barrier after the keys", "attention/fp32.cuh", "      __syncthreads();\n      weigh(", "      weigh("
        ),
        Fault(
            "no barrier before the values",
            "attention/fp32.cuh",
            "      __syncthreads();\n      load(params, p.cache.values",
            "      load(params, p.cache.values",
        ),
        Fault(
            "no barrier after the values",
            "attention/fp32.cuh",
            "      __syncthreads();\n      add_values(",
            "      add_values(",
        ),
        Fault(
            "values that nobody sees",
            "attention/fp32.cuh",
            "const bool inside = visible.has(first + i);",
            "const bool inside = true;",
        ),
        Fault(
            "keys that are not seen not hidden",
            "attention/fp32.cuh",
            ".has(first + lane) ? scores",
            ".has(first) ? scores",
        ),
        Fault("does not rescale what came before", "attention/fp32.cuh", "state.outputs[j] *= factor;", ""),
        Fault("a lane's sum for a row's", "attention/fp32.cuh", "reduce_warp(states[i].sum, Sum())", "states[i].sum"),
    ],
}
"""Faults by case."""
