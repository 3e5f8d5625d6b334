"""The cases of `bench.kernels`: the kernels at the sizes of models, and the fastest way to the same in torch.

Weights that would lie in memory in a running model are read from there: calls go round as many copies as exceed the
caches. On a CUDA device inputs come from memory too.
"""

from __future__ import annotations

import copy
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
from bench.kernel_sizes import AttentionShape, KernelSizes, LoraShape
from kernels import reference
from kernels.formats.stored.gguf import TYPES
from kernels.memory import empty_in_huge_pages
from kernels.ops.moe import SeparateExperts
from kernels.registry import OPS, Cost

_NAMES = {None: "bf16", "int8": "W8A15", "w8a16": "W8A16", "int4": "W4A16"}
_STORED = {
    "float32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
_DRAWS = {"greedy": (0, 0, 1, 0), "all": (1, 0, 1, 0), "top-k 50": (1, 50, 1, 0), "top-p 0.9": (1, 0, 0.9, 0)}
_FLOAT32 = "float32"


class KernelCase(msgspec.Struct, frozen=True):
    """One op at one size."""

    op: str
    shape: str
    cost: Cost
    """The least that the op must move and compute; no bytes where caches hold everything."""
    calls: Sequence[Callable[[], object]]
    """Calls that do the same work on other memory."""
    peers: Sequence[Callable[[], object]] = ()
    """Calls that give the same result in the fastest way in torch."""
    aim: float | None = None
    """Aim for the share of the limit."""
    rate: str = "bfloat16"
    """Type whose products' rate limits the case's FLOPs."""


class KernelCases:
    """Makes the cases of one device."""

    def __init__(self, device: torch.device, sizes: KernelSizes) -> None:
        self._device = device
        self._sizes = sizes

    def by_op(self) -> dict[str, Callable[[], Iterator[KernelCase]]]:
        return {
            "norm": self.norm,
            "activation": self.activation,
            "rotary": self.rotary,
            "attention": self.attention,
            "linear": self.linear,
            "linear_groups": self.linear_groups,
            "lora": self.lora,
            "moe": self.moe,
            "sampling": self.sampling,
        }

    def _random(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, device=self._device).to(dtype)

    def _inputs(self, size: int) -> range:
        """Return the numbers of as many inputs of `size` bytes as should be in memory."""
        return range(-(-self._sizes.input_bytes // size))

    def _moved(self, cost: Cost) -> Cost:
        """Return a cost without the bytes that caches hold."""
        return cost if cost.bytes > self._sizes.caches else Cost(0, cost.flops)

    def _aim(self, share: float, aimed: bool = True) -> float | None:
        return share if aimed and self._sizes.aims else None

    def norm(self) -> Iterator[KernelCase]:
        for tokens, width in self._sizes.norms:
            weight, cost = self._random(width), OPS["rms_norm"].cost(tokens, width, 2)
            xs = [self._random(tokens, width) for _ in self._inputs(cost.bytes)]
            ours = [partial(kernels.rms_norm, x, weight, 1e-5) for x in xs]
            theirs = [partial(F.rms_norm, x, (width,), weight, 1e-5) for x in xs]
            yield KernelCase("rms_norm", f"{tokens} x {width}", cost, ours, theirs, self._aim(0.85))
            cost = OPS["add_rms_norm"].cost(tokens, width, 2)
            residual = self._random(tokens, width)
            ours = [partial(kernels.add_rms_norm, x, residual, weight, 1e-5) for x in xs]
            yield KernelCase("add_rms_norm", f"{tokens} x {width}", cost, ours, (), self._aim(0.85))

    def activation(self) -> Iterator[KernelCase]:
        """Yield cases of the gate between a feed-forward layer's two products, and of the lookup of embeddings."""
        for tokens, width in self._sizes.gates:
            cost = OPS["silu_and_mul"].cost(tokens, width, 2)
            xs = [self._random(tokens, 2 * width) for _ in self._inputs(cost.bytes)]
            ours, theirs = ([partial(body.silu_and_mul, x) for x in xs] for body in (kernels, reference))
            shape, aim = f"{tokens} x {width}", self._aim(0.85)
            yield KernelCase("silu_and_mul", shape, self._moved(cost), ours, theirs, aim, _FLOAT32)
        for tokens in self._sizes.embeddings:
            table = self._random(32000, 2048)
            ids = torch.randint(len(table), (tokens,), device=self._device)
            cost = Cost(0, OPS["embedding"].cost(tokens, 2048, 2).flops)
            ours, theirs = ([partial(body.embedding, ids, table)] for body in (kernels, reference))
            yield KernelCase("embedding", f"{tokens} of 32000 x 2048", cost, ours, theirs)

    def _cache(self, blocks: int, kv_heads: int, dim: int, stored: torch.dtype) -> kernels.LayerCache:
        """Make keys and values as the engine lays them out."""
        shape = (blocks, kv_heads, 16, dim)
        pair = []
        for _ in range(2):
            memory = self._empty(math.prod(shape) * stored.itemsize).view(stored).view(shape)
            block = torch.randint(-127, 128, shape[1:]) if stored == torch.int8 else torch.randn(shape[1:])
            pair.append(memory.copy_(block.to(stored)).transpose(1, 2))
        scales = [torch.full(shape[:3], 0.02, device=self._device).transpose(1, 2) for _ in range(2)]
        return kernels.LayerCache(*pair, *(scales if stored == torch.int8 else ()))

    def _empty(self, size: int) -> torch.Tensor:
        if self._device.type == "cpu":
            return empty_in_huge_pages(size)
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def rotary(self) -> Iterator[KernelCase]:
        """Yield cases of the rotation of queries and keys, and of writing keys and values into the cache."""
        for (tokens, heads, kv_heads, dim), name in itertools.product(self._sizes.rotary, self._sizes.stored):
            stored, dtype = _STORED[name], _computed_in(name)
            cache = self._cache(-(-tokens // 16), kv_heads, dim, stored)
            table = self._random(tokens, dim, dtype=torch.float32)
            places = torch.arange(tokens, device=self._device)
            cost = OPS["rope_and_store"].cost(tokens, heads, kv_heads, dim, dtype.itemsize)
            # Keys and values are written as they are stored, and scales with them.
            scale = 4 if stored == torch.int8 else 0
            smaller = 2 * tokens * kv_heads * (dim * (dtype.itemsize - stored.itemsize) - scale)
            cost = self._moved(Cost(cost.bytes - smaller, cost.flops))
            calls = []
            for _ in self._inputs(max(1, cost.bytes)):
                x = self._random(tokens, heads + 2 * kv_heads, dim, dtype=dtype)
                query, key, value = torch.split(x, [heads, kv_heads, kv_heads], 1)
                calls.append(partial(kernels.rope_and_store, query, key, value, table, places, cache, places))
            shape, aim = f"{tokens} x {heads}/{kv_heads} heads of {dim}", self._aim(0.85, name == "bf16")
            yield KernelCase(f"rope_and_store {name}", shape, cost, calls, (), aim, _FLOAT32)

    def attention(self) -> Iterator[KernelCase]:
        """Yield decodes, prompts and chunks over a paged cache, beside torch's attention over contiguous keys."""
        for one, name in itertools.product(self._sizes.attention, self._sizes.stored):
            stored, dtype, length = _STORED[name], _computed_in(name), one.start + one.count
            width = -(-length // 16)
            blocks = one.rows * width + 3
            order = np.random.default_rng(0).permutation(blocks)[: one.rows * width]
            starts, counts = np.full(one.rows, one.start, np.int32), np.full(one.rows, one.count, np.int32)
            tables = order.astype(np.int32).reshape(one.rows, width)
            plan = kernels.plan_attention(starts, counts, tables, window=None, device=self._device)
            query = self._random(one.rows * one.count, one.heads, one.dim, dtype=dtype)
            pairs = [(one.start, one.count)] * one.rows
            cost = OPS["paged_attention"].cost(
                pairs, one.heads, one.kv_heads, one.dim, dtype.itemsize, None, stored.itemsize
            )
            copies = range(1) if one.kind == "prompt" else self._inputs(cost.bytes)
            caches = [self._cache(blocks, one.kv_heads, one.dim, stored) for _ in copies]
            yield KernelCase(
                f"attention {name}",
                f"{one.kind} {one.rows} x {length}, {one.heads}/{one.kv_heads} heads of {one.dim}",
                cost,
                [partial(kernels.paged_attention, query, cache, plan) for cache in caches],
                [self._torch_attention(query, one) for _ in copies] if stored == dtype else [],
                self._aim(0.85, one.kind == "decode"),
                _FLOAT32 if dtype == torch.float32 else "bfloat16",
            )

    def _torch_attention(self, query: torch.Tensor, one: AttentionShape) -> Callable[[], object]:
        length, group = one.start + one.count, one.heads // one.kv_heads
        keys, values = (self._random(one.rows, one.kv_heads, length, one.dim, dtype=query.dtype) for _ in range(2))
        if one.count == 1:  # faster than enable_gqa: the heads that share keys become queries
            shared = query.view(one.rows, one.kv_heads, group, one.dim)
            return partial(F.scaled_dot_product_attention, shared, keys, values)
        by_head = query.view(one.rows, one.count, one.heads, one.dim).transpose(1, 2).contiguous()
        if one.start == 0:
            return partial(F.scaled_dot_product_attention, by_head, keys, values, is_causal=True, enable_gqa=group > 1)
        mask = torch.ones(one.count, length, dtype=torch.bool, device=self._device).tril(one.start)
        return partial(F.scaled_dot_product_attention, by_head, keys, values, attn_mask=mask, enable_gqa=group > 1)

    def linear(self) -> Iterator[KernelCase]:
        """Yield products with weights, quantised and as they are, beside torch's product in bf16."""
        for outputs, inputs in self._sizes.weights + self._sizes.cached_weights:
            weight = self._random(outputs, inputs)
            from_memory = (outputs, inputs) in self._sizes.weights
            plain = [_reordered(weight) for _ in self._weights(weight.nbytes, from_memory)]
            for quantize in (None, *get_args(kernels.Quantization)):
                first = kernels.pack_weight(weight, quantize)
                copies = self._weights(first.data.nbytes, from_memory)
                packed = [first, *(self._copy(first) for _ in copies[1:])]
                for rows in self._sizes.linear_rows:
                    x = self._random(rows, inputs)
                    cost = first.cost(rows)
                    yield KernelCase(
                        f"linear {_NAMES[quantize]}",
                        f"{rows} x {inputs} -> {outputs}",
                        cost if from_memory else Cost(0, cost.flops),
                        [partial(each, x) for each in packed],
                        [partial(_torch_linear, x, each) for each in plain],
                        self._aim(0.7, quantize == "int4" and rows <= 16),
                        "int8" if quantize == "int8" else "bfloat16",
                    )

    def linear_groups(self) -> Iterator[KernelCase]:
        """Yield products of fp32 with weights as GGUF files store them, read from memory; only CPUs have a body."""
        for (outputs, inputs), stored_type in itertools.product(self._sizes.weights, self._sizes.block_types):
            block = TYPES[stored_type]
            stored = torch.randint(256, (outputs, inputs // block.inputs * block.bytes), dtype=torch.uint8)
            stored[:, 1::2] &= 0xBF  # scales in fp16 are finite
            rule = kernels.StoredRows(stored_type, stored, self._device)
            first = kernels.pack_stacked([(torch.empty(outputs, inputs), rule)])
            packed = [first, *(self._copy(first) for _ in self._weights(first.data.nbytes)[1:])]
            for rows in self._sizes.linear_rows:
                x = self._random(rows, inputs, dtype=torch.float32)
                shape = f"{rows} x {inputs} -> {outputs}"
                calls = [partial(each, x) for each in packed]
                yield KernelCase(f"linear {stored_type.upper()}", shape, first.cost(rows), calls)

    def _weights(self, size: int, from_memory: bool = True) -> range:
        """Return the numbers of as many weights of `size` bytes as caches do not hold."""
        return range(-(-self._sizes.weight_bytes // size) if from_memory else 1)

    def _copy(self, weight: kernels.PackedWeight) -> kernels.PackedWeight:
        data = self._empty(weight.data.nbytes).view(weight.data.dtype).view(weight.data.shape)
        return dataclasses.replace(weight, data=data.copy_(weight.data))

    def lora(self) -> Iterator[KernelCase]:
        """Yield a step's rows through adapters for q, k and v, read from memory, beside torch's batched products."""
        one, width, sizes = self._sizes.lora, self._sizes.lora.width, self._sizes.lora.parts
        layout = stacked_layout(width, sizes, one.rank)
        count = max(one.rows, -(-self._sizes.weight_bytes // (2 * layout.elements)))
        arena = self._random(count, layout.elements)
        adapters = [kernels.LoraAdapter(layout, torch.tensor([sector], device=self._device)) for sector in range(count)]
        workspace = kernels.LoraWorkspace(arena)
        x, out = self._random(one.rows, width), self._random(one.rows, sum(sizes))
        for distinct in one.distinct:
            cost = OPS["adapt_linear"].cost(
                distinct, one.rows, len(sizes) * one.rank, width, one.rank * sum(sizes), sum(sizes), 2
            )
            ours, theirs = [], []
            for first in range(0, count - distinct + 1, distinct):
                people = [adapters[first + row * distinct // one.rows] for row in range(one.rows)]
                workspace.hold(people)
                plan = workspace.plan(people, np.ones(one.rows, np.int64))
                assert plan is not None
                ours.append(partial(kernels.adapt_linear, x, out, plan, "qkv"))
                theirs.append(partial(_torch_lora, x, out, arena[first : first + distinct], one))
            shape = f"{one.rows} x {width} -> {' + '.join(map(str, sizes))}, {distinct} adapters"
            yield KernelCase("adapt_linear", shape, cost, ours, theirs, rate=_FLOAT32)

    def moe(self) -> Iterator[KernelCase]:
        """Yield a layer of eight experts, two for each token, with weights from memory."""
        experts, chosen, (width, inner) = 8, 2, self._sizes.experts
        router = self._random(experts, width) / width**0.5
        gate_up = self._random(experts, 2 * inner, width) / width**0.5
        down = self._random(experts, width, inner) / inner**0.5
        packed_router = kernels.pack_weight(router)
        for quantize in (None, *get_args(kernels.Quantization)):
            first = kernels.pack_experts(gate_up, quantize), kernels.pack_experts(down, quantize)
            nbytes = sum(kernels.pack_weight(one[0], quantize).cost(0).bytes for one in (gate_up, down))
            copies = self._weights(chosen * nbytes)[1:]
            layers = [first, *((self._copy_experts(first[0]), self._copy_experts(first[1])) for _ in copies)]
            for rows in self._sizes.expert_rows:
                x = self._random(rows, width)
                hit = len(set(reference.route_tokens(F.linear(x, router), chosen).experts.flatten().tolist()))
                yield KernelCase(
                    f"experts {_NAMES[quantize]}",
                    f"{rows} x {width} -> {inner}, {hit} of {experts}",
                    Cost(hit * nbytes + 4 * rows * width, 6 * rows * chosen * width * inner),
                    [partial(kernels.moe, x, packed_router, *layer, chosen) for layer in layers],
                    [partial(reference.moe, x, router, gate_up, down, chosen)] if quantize is None else [],
                    rate="int8" if quantize == "int8" else "bfloat16",
                )

    def _copy_experts(self, experts: kernels.PackedExperts) -> kernels.PackedExperts:
        if isinstance(experts, SeparateExperts):
            return SeparateExperts(tuple(map(self._copy, experts.weights)))
        return copy.deepcopy(experts)

    def sampling(self) -> Iterator[KernelCase]:
        """Yield the sampling of a step's tokens from logits."""
        for (rows, vocabulary), (name, draw) in itertools.product(self._sizes.sampling, _DRAWS.items()):
            cost = OPS["sample"].cost(rows, vocabulary, 2)
            # On the device already: a graph cannot be told to copy other numbers, nor hold torch's way.
            draws = torch.tensor([(*draw, 0.3)] * rows, dtype=torch.float64, device=self._device)
            logits = [4 * self._random(rows, vocabulary) for _ in self._inputs(cost.bytes)]
            calls = [partial(kernels.sample, each, draws) for each in logits]
            peers = [partial(reference.sample, each, draws) for each in logits] if self._device.type == "cpu" else []
            shape = f"{rows} x {vocabulary}"
            yield KernelCase(f"sample, {name}", shape, self._moved(cost), calls, peers, rate=_FLOAT32)


def stacked_layout(width: int, sizes: Sequence[int], rank: int) -> kernels.LoraLayout:
    """Return the layout of adapters for one site "qkv" with parts of these sizes."""
    elements = rank * (len(sizes) * width + sum(sizes))
    begins = itertools.accumulate(sizes, initial=0)
    ups = itertools.accumulate((rank * size for size in sizes), initial=len(sizes) * rank * width)
    parts = tuple(
        kernels.LoraPart(begin, begin + size, rank, index * rank * width, up)
        for index, (begin, size, up) in enumerate(zip(begins, sizes, ups, strict=False))
    )
    return kernels.LoraLayout({"qkv": kernels.LoraSite(width, sum(sizes), parts)}, elements, 0, None, elements)


def _computed_in(stored: str) -> torch.dtype:
    return torch.float32 if stored == "float32" else torch.bfloat16


def _reordered(weight: torch.Tensor) -> torch.Tensor:
    """Copy a weight; on a CPU with bf16 in the layout that oneDNN prefers."""
    if weight.is_cuda or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return weight.clone()
    reordered: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 32)
    return reordered


def _torch_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if not weight.is_mkldnn:
        return F.linear(x, weight)
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")
    return result


def _torch_lora(x: torch.Tensor, out: torch.Tensor, adapters: torch.Tensor, shape: LoraShape) -> None:
    """Apply adapters to as many rows each: x [rows, width], out [rows, sizes of all parts], adapters [n, elements]."""
    by_adapter = x.view(len(adapters), -1, shape.width)
    size = shape.rank * shape.width
    downs, ups = adapters.tensor_split([len(shape.parts) * size], 1)
    parts = zip(
        torch.split(out, list(shape.parts), 1),
        torch.split(downs, size, 1),
        torch.split(ups, [shape.rank * part for part in shape.parts], 1),
        strict=True,
    )
    for part, down, up in parts:
        middle = torch.bmm(by_adapter, down.view(len(adapters), shape.width, shape.rank))
        part += torch.bmm(middle, up.view(len(adapters), shape.rank, -1)).flatten(0, 1)
