"""What `bench.kernels` measures on the CPU: the kernels at the sizes of models, and the fastest way there in torch.

Weights that would lie in memory in a running model are read from there: calls go round enough copies of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import get_args

import msgspec
import numpy as np
import torch
import torch.nn.functional as F

import kernels
from kernels import reference
from kernels.memory import empty_in_huge_pages
from kernels.ops.moe import SeparateExperts, StackedExperts
from kernels.registry import OPS

READ_BYTES = 1 << 29
"""More than caches hold."""
_CACHED_BYTES = 1 << 24
"""What stays in caches from one call to the next."""


class CpuCase(msgspec.Struct, frozen=True):
    """One op at one size."""

    op: str
    shape: str
    bytes: int
    """That it must at least move; none where caches hold everything."""
    flops: int
    """That it must at least do."""
    run: Callable[[], object]
    peer: Callable[[], object] | None = None
    """The fastest way to the same result in torch."""
    rate: str = "bfloat16"
    """What its FLOPs are limited by: the products of a type."""


Cases = Callable[[], Iterator[CpuCase]]


def linear() -> Iterator[CpuCase]:
    """Products with weights: the layers of TinyLlama's shape from memory, and those of the small model from caches."""
    large = [(2560, 2048), (11264, 2048), (2048, 5632), (32000, 2048)]
    small = [(864, 288), (288, 288), (3072, 288), (288, 1536), (8192, 288)]
    for outputs, inputs in large + small:
        weight = torch.randn(outputs, inputs).bfloat16()
        from_memory = (outputs, inputs) in large
        many = [512] if outputs < 32000 and from_memory else []
        for quantize in (None, *get_args(kernels.Quantization)):
            first = kernels.pack_weight(weight, quantize)
            copies = -(-READ_BYTES // first.data.nbytes) if from_memory else 1
            ours = itertools.cycle([first, *(_copy(first) for _ in range(copies - 1))])
            theirs = itertools.cycle([_reorder(weight) for _ in range(copies)]) if quantize is None else None
            for rows in (1, 8, 32, *many):
                x = torch.randn(rows, inputs).bfloat16()
                cost = first.cost(rows)
                yield CpuCase(
                    f"linear {quantize or 'bf16'}",
                    f"{rows} x {inputs} -> {outputs}",
                    cost.bytes if from_memory else 0,
                    cost.flops,
                    partial(_ours, x, ours),
                    None if theirs is None else partial(_theirs, x, theirs),
                    quantize if quantize == "int8" else "bfloat16",
                )


def _ours(x: torch.Tensor, weights: Iterator[kernels.PackedWeight]) -> torch.Tensor:
    return next(weights)(x)


def _copy(weight: kernels.PackedWeight) -> kernels.PackedWeight:
    return dataclasses.replace(weight, data=empty_in_huge_pages(weight.data.nbytes).copy_(weight.data))


def _reorder(weight: torch.Tensor) -> torch.Tensor:
    """A weight as oneDNN likes it best, where it has bf16."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return weight
    reordered: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 32)
    return reordered


def _theirs(x: torch.Tensor, weights: Iterator[torch.Tensor]) -> torch.Tensor:
    weight = next(weights)
    if not weight.is_mkldnn:
        return F.linear(x, weight)
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")
    return result


def activation() -> Iterator[CpuCase]:
    """The gate between the two products of a feed-forward layer, and the embedding of a step's tokens."""
    for rows, width in ((1, 5632), (32, 5632), (2048, 5632), (32, 1536)):
        x = torch.randn(rows, 2 * width).bfloat16()
        cost = OPS["silu_and_mul"].cost(rows, width, 2)
        memory = cost.bytes if cost.bytes > _CACHED_BYTES else 0
        run, peer = partial(kernels.silu_and_mul, x), partial(reference.silu_and_mul, x)
        yield CpuCase("silu_and_mul", f"{rows} x {width}", memory, cost.flops, run, peer, "float32")
    table = torch.randn(32000, 2048).bfloat16()
    for rows in (1, 32, 2048):
        tokens = torch.randint(len(table), (rows,))
        cost = OPS["embedding"].cost(rows, 2048, 2)
        run, peer = partial(kernels.embedding, tokens, table), partial(reference.embedding, tokens, table)
        yield CpuCase("embedding", f"{rows} of 32000 x 2048", 0, cost.flops, run, peer)


def sampling() -> Iterator[CpuCase]:
    """From logits to tokens. Logits have just been computed, so that they are in caches."""
    draws = {"greedy": (0, 0, 1, 0), "all": (1, 0, 1, 0), "top-k 50": (1, 50, 1, 0), "top-p 0.9": (1, 0, 0.9, 0)}
    for vocabulary in (8192, 32000, 128256):
        logits = (4 * torch.randn(32, vocabulary)).bfloat16()
        cost = OPS["sample"].cost(32, vocabulary, 2)
        for name, draw in draws.items():
            table = torch.tensor([(*draw, 0.3)] * 32, dtype=torch.float64)
            run, peer = partial(kernels.sample, logits, table), partial(reference.sample, logits, table)
            yield CpuCase(f"sample, {name}", f"32 x {vocabulary}", 0, cost.flops, run, peer, "float32")


def stacked_layout(width: int, sizes: Sequence[int], rank: int) -> kernels.LoraLayout:
    """Of adapters for one site "qkv": parts of these sizes."""
    elements = rank * (len(sizes) * width + sum(sizes))
    begins = itertools.accumulate(sizes, initial=0)
    ups = itertools.accumulate((rank * size for size in sizes), initial=len(sizes) * rank * width)
    parts = tuple(
        kernels.LoraPart(begin, begin + size, rank, index * rank * width, up)
        for index, (begin, size, up) in enumerate(zip(begins, sizes, ups, strict=False))
    )
    return kernels.LoraLayout({"qkv": kernels.LoraSite(width, sum(sizes), parts)}, elements, 0, None, elements)


def lora() -> Iterator[CpuCase]:
    """A decode step's 32 rows through adapters of rank 8 for q, k and v of TinyLlama's shape, read from memory."""
    width, sizes, rank = 2048, (2048, 256, 256), 8
    layout = stacked_layout(width, sizes, rank)
    arena = torch.randn(READ_BYTES // 2 // layout.elements, layout.elements).bfloat16()
    adapters = [kernels.LoraAdapter(layout, torch.tensor([sector])) for sector in range(len(arena))]
    x, out = torch.randn(32, width).bfloat16(), torch.randn(32, sum(sizes)).bfloat16()
    workspace = kernels.LoraWorkspace(arena)
    for distinct in (1, 16, 32):
        plans = []
        for first in range(0, len(adapters) - distinct, distinct):
            people = [adapters[first + row % distinct] for row in range(32)]
            workspace.hold(people)
            plans.append(workspace.plan(people, np.ones(32, np.int64)))
        calls = itertools.cycle([partial(kernels.adapt_linear, x, out, plan, "qkv") for plan in plans if plan])
        cost = OPS["adapt_linear"].cost(distinct, 32, 3 * rank, width, rank * sum(sizes), sum(sizes), 2)
        yield CpuCase(
            "adapt_linear", f"{distinct} adapters", cost.bytes, cost.flops, partial(_call_next, calls), rate="float32"
        )


def _call_next(calls: Iterator[Callable[[], object]]) -> None:
    next(calls)()


def moe() -> Iterator[CpuCase]:
    """A layer of eight experts, two for each token, with a quarter of Mixtral's weights, from memory."""
    experts, chosen, width, inner = 8, 2, 2048, 7168
    router = torch.randn(experts, width).bfloat16() / width**0.5
    gate_up = torch.randn(experts, 2 * inner, width).bfloat16() / width**0.5
    down = torch.randn(experts, width, inner).bfloat16() / inner**0.5
    for quantize in (None, *get_args(kernels.Quantization)):
        first = kernels.pack_experts(gate_up, quantize), kernels.pack_experts(down, quantize)
        nbytes = sum(map(_bytes, first))
        copies = -(-READ_BYTES * experts // (chosen * nbytes))
        layers = [first, *((_copy_experts(first[0]), _copy_experts(first[1])) for _ in range(copies - 1))]
        packed = kernels.pack_weight(router)
        for rows in (1, 8, 32, 512):
            x = torch.randn(rows, width).bfloat16()
            hit = len(set(reference.route_tokens(F.linear(x, router), chosen).experts.flatten().tolist()))
            calls = itertools.cycle([partial(kernels.moe, x, packed, *layer, chosen) for layer in layers])
            yield CpuCase(
                f"experts {quantize or 'bf16'}",
                f"{rows} x {width} -> {inner}, {hit} of {experts}",
                nbytes * hit // experts + 4 * rows * width,
                6 * rows * chosen * width * inner,
                partial(_call_next, calls),
                partial(reference.moe, x, router, gate_up, down, chosen) if quantize is None else None,
                quantize if quantize == "int8" else "bfloat16",
            )


def _copy_experts(experts: kernels.PackedExperts) -> kernels.PackedExperts:
    if isinstance(experts, StackedExperts):
        return StackedExperts(experts.weights.clone())
    assert isinstance(experts, SeparateExperts)
    return SeparateExperts(tuple(map(_copy, experts.weights)))


def _bytes(experts: kernels.PackedExperts) -> int:
    if isinstance(experts, StackedExperts):
        return experts.weights.nbytes
    assert isinstance(experts, SeparateExperts)
    return sum(one.data.nbytes for one in experts.weights)


_STORED = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


def _cache(tokens: int, kv_heads: int, dim: int, stored: torch.dtype) -> kernels.LayerCache:
    """Keys and values of so many tokens as the engine lays them out."""
    shape = (-(-tokens // 16), kv_heads, 16, dim)
    pair = []
    for _ in range(2):
        memory = empty_in_huge_pages(math.prod(shape) * stored.itemsize).view(stored).view(shape)
        numbers = torch.randint(-127, 128, shape[1:]) if stored == torch.int8 else torch.randn(shape[1:])
        pair.append(memory.copy_(numbers.to(stored)).transpose(1, 2))
    scales = [torch.full(shape[:3], 0.02).transpose(1, 2) for _ in range(2)] if stored == torch.int8 else []
    return kernels.LayerCache(*pair, *scales)


def attention() -> Iterator[CpuCase]:
    """Decodes, prompts and chunks over a paged cache, beside torch's attention over keys that lie side by side."""
    shapes = [
        ("decode", 32, 2047, 1, 32, 4, 64),
        ("decode", 8, 4095, 1, 32, 8, 128),
        ("decode", 1, 16383, 1, 32, 8, 128),
        ("decode", 4, 4095, 1, 32, 32, 64),
        ("decode", 32, 159, 1, 6, 6, 48),
        ("draft", 8, 1019, 5, 32, 4, 64),
        ("prompt", 1, 0, 2048, 32, 4, 64),
        ("chunk", 1, 8192, 512, 32, 8, 128),
    ]
    for kind, rows, start, count, heads, kv_heads, dim in shapes:
        for name, stored in _STORED.items():
            dtype = torch.float32 if stored == torch.float32 else torch.bfloat16
            cache = _cache(rows * (start + count + 15), kv_heads, dim, stored)
            width = -(-(start + count) // 16)
            tables = (
                np.random.default_rng(0)
                .permutation(len(cache.keys))[: rows * width]
                .astype(np.int32)
                .reshape(rows, width)
            )
            starts, counts = np.full(rows, start, np.int32), np.full(rows, count, np.int32)
            plan = kernels.plan_attention(starts, counts, tables, window=None, device=torch.device("cpu"))
            query = torch.randn(rows * count, heads, dim).to(dtype)
            cost = OPS["paged_attention"].cost(
                [(start, count)] * rows, heads, kv_heads, dim, dtype.itemsize, None, stored.itemsize
            )
            yield CpuCase(
                f"attention {name}",
                f"{kind} {rows} x {start + count}, {heads}/{kv_heads} heads of {dim}",
                cost.bytes,
                cost.flops,
                partial(kernels.paged_attention, query, cache, plan),
                _torch_attention(query, rows, start, kv_heads) if stored == dtype else None,
                "float32" if dtype == torch.float32 else "bfloat16",
            )


def _torch_attention(query: torch.Tensor, rows: int, start: int, kv_heads: int) -> Callable[[], object]:
    tokens, heads, dim = query.shape
    count = tokens // rows
    keys, values = (torch.randn(rows, kv_heads, start + count, dim).to(query.dtype) for _ in range(2))
    if count == 1:  # faster than enable_gqa: the heads that share keys become queries
        return partial(F.scaled_dot_product_attention, query.view(rows, kv_heads, heads // kv_heads, dim), keys, values)
    by_head = query.view(rows, count, heads, dim).transpose(1, 2).contiguous()
    grouped = heads != kv_heads
    if start == 0:
        return partial(F.scaled_dot_product_attention, by_head, keys, values, is_causal=True, enable_gqa=grouped)
    mask = torch.ones(count, start + count, dtype=torch.bool).tril(start)
    return partial(F.scaled_dot_product_attention, by_head, keys, values, attn_mask=mask, enable_gqa=grouped)


def rotary() -> Iterator[CpuCase]:
    """The rotation of queries and keys, and the way of keys and values into the cache."""
    heads, kv_heads, dim = 32, 4, 64
    for tokens in (1, 32, 512):
        for name, stored in _STORED.items():
            dtype = torch.float32 if stored == torch.float32 else torch.bfloat16
            cache = _cache(tokens, kv_heads, dim, stored)
            x = torch.randn(tokens, heads + 2 * kv_heads, dim).to(dtype)
            parts = (x[:, :heads], x[:, heads : heads + kv_heads], x[:, heads + kv_heads :])
            angles = torch.outer(torch.arange(tokens), 10000 ** (-torch.arange(dim // 2) * 2 / dim))
            table = torch.cat([angles.cos(), angles.sin()], -1)
            places = torch.arange(tokens)
            cost = OPS["rope_and_store"].cost(tokens, heads, kv_heads, dim, dtype.itemsize)
            yield CpuCase(
                f"rope_and_store {name}",
                f"{tokens} x {heads}/{kv_heads} heads of {dim}",
                0,
                cost.flops,
                partial(kernels.rope_and_store, *parts, table, places, cache, places),
                rate="float32",
            )


CASES: dict[str, Cases] = {
    "attention": attention,
    "rotary": rotary,
    "linear": linear,
    "activation": activation,
    "sampling": sampling,
    "lora": lora,
    "moe": moe,
}
