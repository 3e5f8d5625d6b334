"""The parts of a decoder layer: attention, dense MLP and mixture of experts, with their weights packed.

A part owns its tensors, tells the loader which tensor of a checkpoint goes into which slice (`targets`), brings its
weights into the device's preferred layout once they are loaded (`pack`), and runs. Plain objects instead of
`nn.Module`: on small models half of a step would be attribute lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

import kernels
from engine.adapters.manifest import Module
from engine.checkpoint.config import Activation, ModelConfig
from engine.model.weights import Targets, WeightPart
from kernels import (
    AttentionPlan,
    LayerCache,
    LoraExperts,
    LoraPlan,
    PackedExperts,
    PackedWeight,
    Quantization,
    Recording,
    SeparateExperts,
    TablePlan,
)

Base = tuple[torch.Tensor, torch.Tensor | None]
"""Weight [out, in] and bias [out] of one module, as adapters need them."""


@dataclass(frozen=True, slots=True)
class ReadoutTokens:
    """The tokens of a step whose hidden states are read: of all others the last layer only writes keys and values."""

    tokens: torch.Tensor
    """[K], positions of these tokens in the batch."""
    plan: AttentionPlan
    """Attention plan of these tokens, for the window of the last layer."""
    lora: LoraPlan | None
    """LoRA plan of these tokens; None: none has an adapter."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Inputs that all layers of a step share."""

    rotary: torch.Tensor
    """[tables, rows, rotated dimensions], cosines and sines for each of `ModelConfig.rope_tables`."""
    rotations: torch.Tensor
    """[T], row of these tables for each token."""
    slots: torch.Tensor
    """[T], slot mapping: where each token's keys and values are written."""
    plans: dict[int | None, AttentionPlan]
    """Attention plans by window."""
    lora: LoraPlan | None = None
    """LoRA plan of the batch; None: no row has an adapter."""
    readout: ReadoutTokens | None = None
    """Tokens whose hidden states are read; None: all of them."""
    recording: Recording | None = None
    """What records the step; None: nothing does."""


class FeedForward(Protocol):
    def __call__(self, x: torch.Tensor, lora: LoraPlan | None) -> torch.Tensor: ...
    def targets(self, prefix: str) -> Targets: ...
    def pack(self, quantize: Quantization | None) -> None: ...
    def base(self, module: Module) -> Base: ...


class Linear:
    """A weight [out, in] with an optional bias, filled from one checkpoint tensor or several stacked ones.

    `site` is what adapters call it (`engine.adapters.layout`). Results are rounded to `dtype`, or stay in fp32 if that
    is `out_dtype`.
    """

    __slots__ = ("_out_dtype", "_packed", "bias", "parts", "site", "sizes", "weight")

    def __init__(
        self,
        site: str,
        inputs: int,
        sizes: tuple[int, ...],
        *,
        bias: bool,
        device: torch.device,
        dtype: torch.dtype,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        self.site = site
        self.sizes = list(sizes)
        self.weight: torch.Tensor | None = torch.empty(sum(sizes), inputs, device=device, dtype=dtype)
        """Weight as it is loaded; None once it is packed."""
        self.parts = [WeightPart(part) for part in torch.split(self.weight, self.sizes)]
        """Stacked parts as they are loaded, each maybe quantised in its own way; empty once they are packed."""
        self._packed: PackedWeight | None = None
        self._out_dtype = out_dtype
        self.bias = torch.empty(sum(sizes), device=device, dtype=dtype) if bias else None

    def targets(self, *names: str) -> Targets:
        """Where the tensors of each stacked part go, one name per part."""
        found: Targets = {f"{name}.weight": part for name, part in zip(names, self.parts, strict=True)}
        if self.bias is not None:
            found |= {
                f"{name}.bias": part for name, part in zip(names, torch.split(self.bias, self.sizes), strict=True)
            }
        return found

    def pack(self, quantize: Quantization | None) -> None:
        assert self.weight is not None
        if all(part.unpack is None for part in self.parts):
            self._packed = kernels.pack_weight(self.weight, quantize)
        else:
            self._packed = kernels.pack_stacked([part.stored for part in self.parts])
        self.weight = None
        self.parts = []

    def base(self, part: int) -> Base:
        """One of the stacked parts as it was loaded, or what quantisation has left of it."""
        assert self._packed is not None
        bias = None if self.bias is None else torch.split(self.bias, self.sizes)[part]
        return torch.split(self._packed.dense(), self.sizes)[part], bias

    def __call__(self, x: torch.Tensor, lora: LoraPlan | None) -> torch.Tensor:
        assert self._packed is not None
        out = self._packed(x, self.bias, self._out_dtype)
        if lora is not None:
            kernels.adapt_linear(x, out, lora, self.site)
        return out


class Attention:
    """Rotary self-attention with grouped KV heads over the paged cache of one layer."""

    def __init__(self, config: ModelConfig, layer: int, device: torch.device, dtype: torch.dtype) -> None:
        self._heads, self._kv_heads, self._dim = config.heads, config.kv_heads, config.head_dim
        self._names = config.linear_names.qkv
        fused = len(self._names) == 1
        self._modules: tuple[Module, ...] = ("qkv_proj",) if fused else ("q_proj", "k_proj", "v_proj")
        self._shares = (config.heads, config.kv_heads, config.kv_heads)
        self.window = config.windows[layer]
        self._eps = config.norm_eps
        self._table = config.rope_tables.index(config.ropes[layer])
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self._qkv = Linear(
            f"{layer}.qkv",
            config.hidden_size,
            (queries + 2 * keys,) if fused else (queries, keys, keys),
            bias=config.qkv_bias,
            device=device,
            dtype=dtype,
        )
        self._output = Linear(
            f"{layer}.output", queries, (config.hidden_size,), bias=config.output_bias, device=device, dtype=dtype
        )
        self._norm_offset = config.norm_offset
        self._norm_over = config.qk_norm
        counts = (1, 1) if config.qk_norm == "each head" else self._shares[:2]
        sizes = [] if config.qk_norm == "none" else [count * config.head_dim for count in counts]
        self._qk_norms = [torch.empty(size, device=device, dtype=dtype) for size in sizes]
        """Weights of the norms of queries and of keys, if there are any."""

    def targets(self, prefix: str) -> Targets:
        found = self._qkv.targets(*(f"{prefix}.{name}" for name in self._names))
        found |= self._output.targets(f"{prefix}.self_attn.o_proj")
        names = (f"{prefix}.self_attn.{name}.weight" for name in ("q_norm", "k_norm"))
        return found | dict(zip(names, self._qk_norms, strict=False))

    def pack(self, quantize: Quantization | None) -> None:
        self._qkv.pack(quantize)
        self._output.pack(quantize)
        for norm in self._qk_norms:
            norm.add_(self._norm_offset)
        if self._norm_over == "each head":
            # One weight per head, so that queries and keys are normalised in one call.
            weights = zip(self._qk_norms, self._shares[:2], strict=True)
            self._qk_norms = [torch.cat([norm.expand(count, -1) for norm, count in weights])]

    def base(self, module: Module) -> Base:
        return self._output.base(0) if module == "o_proj" else self._qkv.base(self._modules.index(module))

    def store(self, x: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """Write keys and values of x [T, hidden] into the cache -> queries [T, heads, head_dim]."""
        outputs = self._qkv(x, step.lora)
        heads = outputs.view(-1, self._heads + 2 * self._kv_heads, self._dim)
        query, key, value = heads.split_with_sizes(self._shares, 1)
        if self._norm_over == "each head":
            both = kernels.rms_norm(heads[:, : self._heads + self._kv_heads], self._qk_norms[0], self._eps)
            query, key = both.split_with_sizes(self._shares[:2], 1)
        elif self._norm_over == "all heads":
            parts = outputs.split_with_sizes([count * self._dim for count in self._shares], 1)
            query, key = (
                kernels.rms_norm(part, norm, self._eps).view(len(x), -1, self._dim)
                for part, norm in zip(parts, self._qk_norms, strict=False)
            )
        kernels.rope_and_store(query, key, value, step.rotary[self._table], step.rotations, cache, step.slots)
        return query

    def __call__(
        self, query: torch.Tensor, cache: LayerCache, plan: AttentionPlan, lora: LoraPlan | None
    ) -> torch.Tensor:
        """Attention of a plan's rows over the cache, projected -> [T, hidden]."""
        return self._output(kernels.paged_attention(query, cache, plan), lora)


_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": kernels.silu_and_mul,
    "gelu": partial(kernels.gelu_and_mul, tanh=False),
    "gelu_tanh": partial(kernels.gelu_and_mul, tanh=True),
}


_MLP_TOKENS = 256
"""Tokens that an MLP takes at a time on the CPU. The numbers between its two products then stay in caches, and in
memory that malloc keeps: 2,048 tokens need so much that the system takes it back and clears it in every layer."""


class Mlp:
    """A gated feed-forward layer: SwiGLU, or with another activation."""

    def __init__(self, config: ModelConfig, layer: int, device: torch.device, dtype: torch.dtype) -> None:
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self._names = config.linear_names
        fused = len(self._names.gate_up) == 1
        self._modules: tuple[Module, ...] = ("gate_up_proj",) if fused else ("gate_proj", "up_proj")
        sizes = (2 * inner,) if fused else (inner, inner)
        self._gate_up = Linear(f"{layer}.gate_up", width, sizes, bias=bias, device=device, dtype=dtype)
        self._down = Linear(f"{layer}.down", inner, (width,), bias=bias, device=device, dtype=dtype)
        self._activate = _ACTIVATIONS[config.activation]

    def targets(self, prefix: str) -> Targets:
        gate_up = self._gate_up.targets(*(f"{prefix}.{name}" for name in self._names.gate_up))
        return gate_up | self._down.targets(f"{prefix}.{self._names.down}")

    def pack(self, quantize: Quantization | None) -> None:
        self._gate_up.pack(quantize)
        self._down.pack(quantize)

    def base(self, module: Module) -> Base:
        return self._down.base(0) if module == "down_proj" else self._gate_up.base(self._modules.index(module))

    def __call__(self, x: torch.Tensor, lora: LoraPlan | None) -> torch.Tensor:
        # A token's numbers do not depend on which others are with it.
        if x.is_cpu and len(x) >= 2 * _MLP_TOKENS and (lora is None or isinstance(lora, TablePlan)):
            parts = torch.split(x, _MLP_TOKENS)
            plans: Sequence[LoraPlan | None] = (
                [None] * len(parts) if lora is None else lora.split_rows(_MLP_TOKENS, len(x))
            )
            return torch.cat([self._run(rows, plan) for rows, plan in zip(parts, plans, strict=True)])
        return self._run(x, lora)

    def _run(self, x: torch.Tensor, lora: LoraPlan | None) -> torch.Tensor:
        return self._down(self._activate(self._gate_up(x, lora)), lora)


class MixtureOfExperts:
    """A sparse mixture of SwiGLU experts with Mixtral's routing."""

    def __init__(self, config: ModelConfig, layer: int, device: torch.device, dtype: torch.dtype) -> None:
        experts, width, inner = config.experts, config.hidden_size, config.intermediate_size
        assert config.expert_names is not None
        self._names = config.expert_names
        self._sites = (f"{layer}.router", f"{layer}.experts.gate_up", f"{layer}.experts.down")
        self._experts_per_token = config.experts_per_token
        self._weights: tuple[torch.Tensor, ...] = (
            torch.empty(experts, width, device=device, dtype=dtype),
            torch.empty(experts, 2 * inner, width, device=device, dtype=dtype),
            torch.empty(experts, width, inner, device=device, dtype=dtype),
        )
        """Weights of router, gate and up, and down as they are loaded; empty once they are packed."""
        self._parts = [
            tuple(WeightPart(part) for part in (*gate_up.chunk(2), down))
            for gate_up, down in zip(*self._weights[1:], strict=True)
        ]
        """Gate, up and down of each expert as they are loaded, each maybe quantised; empty once they are packed."""
        self._packed: tuple[PackedWeight, PackedExperts, PackedExperts] | None = None

    def targets(self, prefix: str) -> Targets:
        names = self._names
        prefix += f".{names.block}"
        found: Targets = {f"{prefix}.gate.weight": self._weights[0]}
        for index, parts in enumerate(self._parts):
            each = zip((names.gate, names.up, names.down), parts, strict=True)
            found |= {f"{prefix}.experts.{index}.{name}.weight": part for name, part in each}
        return found

    def pack(self, quantize: Quantization | None) -> None:
        """Pack all weights; the router is never quantised, because it is small and a wrong choice is a wrong expert."""
        router, gate_ups, downs = self._weights
        if all(part.unpack is None for parts in self._parts for part in parts):
            packed = kernels.pack_experts(gate_ups, quantize), kernels.pack_experts(downs, quantize)
        else:
            both = [kernels.pack_stacked([gate.stored, up.stored]) for gate, up, _ in self._parts]
            alone = [kernels.pack_stacked([down.stored]) for _, _, down in self._parts]
            packed = SeparateExperts(tuple(both)), SeparateExperts(tuple(alone))
        self._packed = kernels.pack_weight(router), *packed
        self._weights = ()
        self._parts = []

    def base(self, module: Module) -> Base:
        if module != "router":
            raise KeyError(module)
        assert self._packed is not None
        return self._packed[0].dense(), None

    def __call__(self, x: torch.Tensor, lora: LoraPlan | None) -> torch.Tensor:
        assert self._packed is not None
        adapted = None if lora is None else LoraExperts(lora, *self._sites)
        return kernels.moe(x, *self._packed, self._experts_per_token, adapted)
