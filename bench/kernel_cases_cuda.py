"""What `bench.kernels --device cuda` measures: the kernels at the sizes of Llama 2 and Mixtral, and torch's way there.

Inputs and weights are read from memory: calls go round as many copies as exceed the device's caches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import get_args

import msgspec
import numpy as np
import torch
import torch.nn.functional as F

import kernels
from bench.kernel_cases import stacked_layout
from kernels import reference
from kernels.registry import OPS, Cost


class CudaSizes(msgspec.Struct, frozen=True):
    """How large the inputs are."""

    tokens: int
    """Of a prompt's chunk."""
    cached: int
    """Bytes that inputs of all copies together exceed."""
    context: int
    probe_bytes: int
    probe_size: int
    """Rows and columns of the square product."""
    seconds: float
    """Of calls in a graph, about."""


FULL = CudaSizes(16384, 1 << 28, 4096, 1 << 30, 8192, 2e-3)
QUICK = CudaSizes(3, 1, 40, 1 << 16, 32, 0.0)
"""Shows that all works."""


class CudaCase(msgspec.Struct, frozen=True):
    """One op at one size."""

    op: str
    shape: str
    cost: Cost
    calls: Sequence[Callable[[], object]]
    """The same work on other memory."""
    peers: Sequence[Callable[[], object]] = ()
    """The fastest way to the same result in torch."""
    aim: float | None = None
    """What the share of the limit should be."""


_STORED = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
_NAMES = {None: "bf16", "int8": "W8A8", "w8a16": "W8A16", "int4": "W4A16"}


class CudaCases:
    """Cases on one device."""

    def __init__(self, device: torch.device, sizes: CudaSizes) -> None:
        self._device = device
        self._sizes = sizes

    def by_op(self) -> dict[str, Callable[[], Iterator[CudaCase]]]:
        return {
            "norm": self.norm,
            "activation": self.activation,
            "rotary": self.rotary,
            "attention": self.attention,
            "linear": self.linear,
            "lora": self.lora,
            "moe": self.moe,
            "sampling": self.sampling,
        }

    def _random(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, device=self._device).to(dtype)

    def _copies(self, size: int) -> range:
        """Numbers of as many copies of `size` bytes as the caches do not hold."""
        return range(max(1, -(-self._sizes.cached // size)))

    def norm(self) -> Iterator[CudaCase]:
        tokens = self._sizes.tokens
        for width in (4096, 8192):
            weight, cost = self._random(width), OPS["rms_norm"].cost(tokens, width, 2)
            xs = [self._random(tokens, width) for _ in self._copies(cost.bytes)]
            ours = [partial(kernels.rms_norm, x, weight, 1e-5) for x in xs]
            theirs = [partial(F.rms_norm, x, (width,), weight, 1e-5) for x in xs]
            yield CudaCase("rms_norm", f"{tokens} x {width}", cost, ours, theirs, 0.85)
            cost = OPS["add_rms_norm"].cost(tokens, width, 2)
            residual = self._random(tokens, width)
            ours = [partial(kernels.add_rms_norm, x, residual, weight, 1e-5) for x in xs]
            yield CudaCase("add_rms_norm", f"{tokens} x {width}", cost, ours, (), 0.85)

    def activation(self) -> Iterator[CudaCase]:
        tokens = self._sizes.tokens
        for width in (11008, 28672):
            cost = OPS["silu_and_mul"].cost(tokens, width, 2)
            xs = [self._random(tokens, 2 * width) for _ in self._copies(cost.bytes)]
            ours = [partial(kernels.silu_and_mul, x) for x in xs]
            theirs = [partial(reference.silu_and_mul, x) for x in xs]
            yield CudaCase("silu_and_mul", f"{tokens} x {width}", cost, ours, theirs, 0.85)

    def _cache(self, blocks: int, kv_heads: int, dim: int, stored: torch.dtype) -> kernels.LayerCache:
        """Keys and values as the engine lays them out."""
        shape = (blocks, kv_heads, 16, dim)
        pair = []
        for _ in range(2):
            if stored == torch.int8:
                numbers = torch.randint(-127, 128, shape, dtype=torch.int8, device=self._device)
            else:
                numbers = torch.randn(shape, device=self._device, dtype=torch.bfloat16).to(stored)
            pair.append(numbers.transpose(1, 2))
        scales = [torch.full(shape[:3], 0.02, device=self._device).transpose(1, 2) for _ in range(2)]
        return kernels.LayerCache(*pair, *(scales if stored == torch.int8 else ()))

    def rotary(self) -> Iterator[CudaCase]:
        tokens, heads, dim = self._sizes.tokens, 32, 128
        for kv_heads in (32, 8):
            for name, stored in _STORED.items():
                cache = self._cache(-(-tokens // 16), kv_heads, dim, stored)
                table = self._random(tokens, dim, dtype=torch.float32)
                places = torch.arange(tokens, device=self._device)
                cost = OPS["rope_and_store"].cost(tokens, heads, kv_heads, dim, 2)
                # Keys and values are written as they are stored, and scales with them.
                smaller = 2 * tokens * kv_heads * (dim * (2 - stored.itemsize) - (4 if stored == torch.int8 else 0))
                cost = Cost(cost.bytes - smaller, cost.flops)
                calls = []
                for _ in self._copies(cost.bytes):
                    x = self._random(tokens, heads + 2 * kv_heads, dim)
                    query, key, value = torch.split(x, [heads, kv_heads, kv_heads], 1)
                    arguments = (query, key, value, table, places, cache, places)
                    calls.append(partial(kernels.rope_and_store, *arguments))
                shape = f"{tokens} x {heads}/{kv_heads} heads of {dim}"
                yield CudaCase(f"rope_and_store {name}", shape, cost, calls, (), 0.85 if name == "bf16" else None)

    def attention(self) -> Iterator[CudaCase]:
        """Decodes over 100 MB of keys and values and more, and prompts."""
        context = self._sizes.context
        shapes = [
            ("decode", 32, context, 1, 32, 8, 128),
            ("decode", 8, context, 1, 32, 32, 128),
            ("decode", 1, 16 * context, 1, 64, 8, 128),
            ("decode", 32, context, 1, 32, 8, 64),
            ("prompt", 1, context, context, 32, 8, 128),
        ]
        for kind, rows, length, count, heads, kv_heads, dim in shapes:
            for name, stored in _STORED.items():
                width = -(-length // 16)
                cache = self._cache(rows * width + 3, kv_heads, dim, stored)
                order = np.random.default_rng(0).permutation(len(cache.keys))[: rows * width]
                counts = np.full(rows, count, np.int32)
                plan = kernels.plan_attention(
                    np.full(rows, length - count, np.int32),
                    counts,
                    order.astype(np.int32).reshape(rows, width),
                    window=None,
                    device=self._device,
                )
                query = self._random(rows * count, heads, dim)
                pairs = [(length - count, count)] * rows
                cost = OPS["paged_attention"].cost(pairs, heads, kv_heads, dim, 2, None, stored.itemsize)
                copies = range(1) if kind == "prompt" else self._copies(cost.bytes)
                calls = [partial(kernels.paged_attention, query, cache, plan)]
                for _ in copies[1:]:
                    cache = self._cache(rows * width + 3, kv_heads, dim, stored)
                    calls.append(partial(kernels.paged_attention, query, cache, plan))
                peers = [self._torch_attention(query, rows, length, kv_heads) for _ in copies] if name == "bf16" else []
                shape = f"{kind} {rows} x {length}, {heads}/{kv_heads} heads of {dim}"
                yield CudaCase(f"attention {name}", shape, cost, calls, peers, 0.85 if kind == "decode" else None)

    def _torch_attention(self, query: torch.Tensor, rows: int, length: int, kv_heads: int) -> Callable[[], object]:
        """torch's, over keys and values that lie side by side."""
        tokens, heads, dim = query.shape
        keys, values = (self._random(rows, kv_heads, length, dim) for _ in range(2))
        by_head = query.view(rows, tokens // rows, heads, dim).transpose(1, 2).contiguous()
        if tokens == rows:  # faster than enable_gqa: the heads that share keys become queries
            shared = by_head.view(rows, kv_heads, heads // kv_heads, dim)
            return partial(F.scaled_dot_product_attention, shared, keys, values)
        grouped = heads != kv_heads
        return partial(F.scaled_dot_product_attention, by_head, keys, values, is_causal=True, enable_gqa=grouped)

    def linear(self) -> Iterator[CudaCase]:
        """The layers of the 7B and 70B shapes, quantised and as they are, beside torch's product in bf16."""
        shapes = [(12288, 4096), (22016, 4096), (4096, 11008), (10240, 8192), (57344, 8192), (8192, 28672)]
        if self._sizes is QUICK:
            shapes = [(48, 256)]
        for outputs, inputs in shapes:
            weight = self._random(outputs, inputs)
            plain = [weight] + [weight.clone() for _ in self._copies(weight.nbytes)[1:]]
            for quantize in (None, *get_args(kernels.Quantization)):
                packed = [kernels.pack_weight(weight, quantize)]
                for _ in self._copies(packed[0].data.nbytes)[1:]:
                    packed.append(dataclasses.replace(packed[0], data=packed[0].data.clone()))
                for rows in (1, 4, 16, 64, 512):
                    x = self._random(rows, inputs)
                    cost = packed[0].cost(rows)
                    ours = [partial(each, x) for each in packed]
                    theirs = [partial(F.linear, x, each) for each in plain]
                    aim = 0.7 if quantize == "int4" and rows <= 16 else None
                    yield CudaCase(
                        f"linear {_NAMES[quantize]}", f"{rows} x {inputs} -> {outputs}", cost, ours, theirs, aim
                    )

    def lora(self) -> Iterator[CudaCase]:
        """A step's 64 rows through adapters for q, k and v of the 7B shape, beside batched products of their own."""
        rows, width, rank = (64, 4096, 16) if self._sizes is not QUICK else (16, 64, 8)
        layout = stacked_layout(width, (width,) * 3, rank)
        count = max(rows, -(-self._sizes.cached // (2 * layout.elements)))
        arena = self._random(count, layout.elements)
        adapters = [kernels.LoraAdapter(layout, torch.tensor([sector], device=self._device)) for sector in range(count)]
        x, out = self._random(rows, width), self._random(rows, 3 * width)
        for distinct in sorted({1, 16, rows}):
            cost = OPS["adapt_linear"].cost(distinct, rows, 3 * rank, width, 3 * rank * width, 3 * width, 2)
            ours, theirs = [], []
            for first in range(0, count - distinct + 1, distinct):
                people = [adapters[first + row * distinct // rows] for row in range(rows)]
                workspace = kernels.LoraWorkspace(arena)
                workspace.hold(people)
                plan = workspace.plan(people, np.ones(rows, np.int64))
                assert plan is not None
                ours.append(partial(kernels.adapt_linear, x, out, plan, "qkv"))
                downs, ups = self._random(3, distinct, width, rank), self._random(3, distinct, rank, width)
                theirs.append(partial(_torch_lora, x, out, downs, ups))
            yield CudaCase("adapt_linear", f"{rows} x {width} -> 3 x {width}, {distinct} adapters", cost, ours, theirs)

    def moe(self) -> Iterator[CudaCase]:
        """A layer of Mixtral 8x7B, two experts for each token."""
        experts, chosen = 8, 2
        width, inner = (4096, 14336) if self._sizes is not QUICK else (64, 32)
        router = self._random(experts, width) / width**0.5
        gate_up = self._random(experts, 2 * inner, width) / width**0.5
        down = self._random(experts, width, inner) / inner**0.5
        packed_router = kernels.pack_weight(router)
        for quantize in (None, *get_args(kernels.Quantization)):
            packed = kernels.pack_experts(gate_up, quantize), kernels.pack_experts(down, quantize)
            nbytes = sum(kernels.pack_weight(one[0], quantize).cost(0).bytes for one in (gate_up, down))
            for rows in (1, 8, 64, 512):
                x = self._random(rows, width)
                hit = len(set(reference.route_tokens(F.linear(x, router), chosen).experts.flatten().tolist()))
                cost = Cost(hit * nbytes + 4 * rows * width, 6 * rows * chosen * width * inner)
                theirs = [partial(reference.moe, x, router, gate_up, down, chosen)] if quantize is None else []
                yield CudaCase(
                    f"experts {_NAMES[quantize]}",
                    f"{rows} x {width} -> {inner}, {hit} of {experts}",
                    cost,
                    [partial(kernels.moe, x, packed_router, *packed, chosen)],
                    theirs,
                )

    def sampling(self) -> Iterator[CudaCase]:
        """From a step's logits to tokens."""
        rows, vocabulary = (64, 128256) if self._sizes is not QUICK else (3, 300)
        cost = OPS["sample"].cost(rows, vocabulary, 2)
        for name, draw in {"greedy": (0, 0, 1, 0), "all": (1, 0, 1, 0), "top-p 0.9": (1, 0, 0.9, 0)}.items():
            # On the device already: a graph cannot be told to copy other numbers.
            draws = torch.tensor([(*draw, 0.3)] * rows, dtype=torch.float64, device=self._device)
            logits = [4 * self._random(rows, vocabulary) for _ in self._copies(cost.bytes)]
            calls = [partial(kernels.sample, each, draws) for each in logits]
            yield CudaCase(f"sample, {name}", f"{rows} x {vocabulary}", cost, calls)


def _torch_lora(x: torch.Tensor, out: torch.Tensor, downs: torch.Tensor, ups: torch.Tensor) -> None:
    """Rows by adapter, each with as many: x [rows, width], out [rows, 3 width], downs and ups [3, adapters, ...]."""
    by_adapter = x.view(downs.shape[1], -1, x.shape[1])
    for part, down, up in zip(out.chunk(3, 1), downs, ups, strict=True):
        part += torch.bmm(torch.bmm(by_adapter, down), up).flatten(0, 1)
