"""Mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels import library, reference
from kernels.formats import PackedWeight, Quantization, pack_weight
from kernels.formats.cuda import CudaWeight, stack
from kernels.lora.ops import LoraExperts
from kernels.ops.activation import silu_and_mul
from kernels.ops.embedding import embedding
from kernels.reference import ExpertRouting
from kernels.registry import Cost, register


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """Weights [experts, outputs, inputs] as they are."""

    weights: torch.Tensor

    def __call__(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return grouped_linear(rows, self.weights, ends)


@dataclass(frozen=True, slots=True)
class SeparateExperts:
    """A packed weight for each expert; those that no row has chosen are not read."""

    weights: tuple[PackedWeight, ...]

    def __call__(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        bounds: list[int] = [0, *ends.tolist()]
        parts = zip(bounds, bounds[1:], self.weights, strict=False)
        found = [weight(rows[begin:end]) for begin, end, weight in parts if begin < end]
        return found[0] if len(found) == 1 else torch.cat(found)


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """The quantised weights of all experts, one behind the other, which one call of a CUDA body multiplies with."""

    weights: CudaWeight

    def __call__(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return self.weights.grouped(rows, ends)


PackedExperts = StackedExperts | SeparateExperts | GroupedExperts
"""The weights of one layer's experts; a call is `reference.grouped_linear` with them."""


def pack_experts(weights: torch.Tensor, quantize: Quantization | None = None) -> PackedExperts:
    """`pack_weight` for the weights [experts, outputs, inputs] of one layer's experts."""
    if quantize is None and (library.of(weights, "linear") is None or weights.dtype not in library.TYPES):
        return StackedExperts(weights)
    each = [pack_weight(weight, quantize) for weight in weights]
    grouped = [weight for weight in each if isinstance(weight, CudaWeight)]
    return GroupedExperts(stack(grouped)) if grouped else SeparateExperts(tuple(each))


def moe(
    x: torch.Tensor,
    router: PackedWeight,
    gate_up: PackedExperts,
    down: PackedExperts,
    experts_per_token: int,
    lora: LoraExperts | None = None,
) -> torch.Tensor:
    """`reference.moe`: x [T, width] -> [T, width]. The weights of experts that no token has chosen are not read."""
    logits = router(x)
    if lora is not None:
        lora.adapt_router(x, logits)
    routing = route_tokens(logits, experts_per_token)
    rows = embedding(routing.tokens, x)
    hidden = gate_up(rows, routing.ends)
    if lora is not None:
        lora.adapt_gate_up(rows, hidden, routing.experts, routing.order)
    hidden = silu_and_mul(hidden)
    outputs = down(hidden, routing.ends)
    if lora is not None:
        lora.adapt_down(hidden, outputs, routing.experts, routing.order)
    return combine_experts(outputs, routing.weights, routing.places)


def grouped_linear(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """`reference.grouped_linear`: x [rows, inputs], weights [E, outputs, inputs], ends [E] int64, all contiguous."""
    body = library.of(x, "grouped_linear")
    _, outputs, inputs = weights.shape
    if body is None or x.dtype != torch.bfloat16 or outputs % 2 or inputs % 8:
        return reference.grouped_linear(x, weights, ends)
    out = x.new_empty(len(x), outputs)
    body.grouped_linear(out, x, weights, ends)
    return out


def route_tokens(logits: torch.Tensor, experts_per_token: int) -> ExpertRouting:
    """`reference.route_tokens`: logits [T, E], contiguous. Of equal logits the first expert wins."""
    body = library.of(logits, "route_tokens")
    if body is None or logits.dtype not in library.TYPES:
        return reference.route_tokens(logits, experts_per_token)
    routing = _routing(logits, experts_per_token)
    body.route_tokens(*routing, logits)
    return routing


def combine_experts(outputs: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """`reference.combine_experts`: outputs [T * k, width], weights [T, k] in fp32, places [T, k] int64."""
    body = library.of(outputs, "combine_experts")
    if body is None or outputs.dtype not in library.TYPES:
        return reference.combine_experts(outputs, weights, places)
    out = outputs.new_empty(weights.shape[0], outputs.shape[1])
    body.combine_experts(out, outputs, weights, places)
    return out


def _routing(logits: torch.Tensor, k: int) -> ExpertRouting:
    tokens, experts = logits.shape
    weights = torch.empty(tokens, k, dtype=torch.float32, device=logits.device)
    chosen, order, places, sources, ends = (
        torch.empty(shape, dtype=torch.int64, device=logits.device)
        for shape in ((tokens, k), (tokens * k,), (tokens, k), (tokens * k,), (experts,))
    )
    return ExpertRouting(weights, chosen, order, places, sources, ends)


def route_cost(rows: int, experts: int, itemsize: int) -> Cost:
    return Cost(rows * experts * itemsize, 2 * rows * experts)


def grouped_cost(rows: int, experts: int, outputs: int, inputs: int, itemsize: int) -> Cost:
    """Cost with `experts` experts that have rows."""
    return Cost((rows * (inputs + outputs) + experts * outputs * inputs) * itemsize, 2 * rows * outputs * inputs)


def combine_cost(rows: int, experts_per_token: int, width: int, itemsize: int) -> Cost:
    return Cost((experts_per_token + 1) * rows * width * itemsize, 2 * experts_per_token * rows * width)


register(
    "route_tokens(Tensor logits, int experts_per_token) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    lambda logits, experts_per_token: tuple(route_tokens(logits, experts_per_token)),
    fake=lambda logits, experts_per_token: tuple(_routing(logits, experts_per_token)),
    cost=route_cost,
)
register(
    "combine_experts(Tensor outputs, Tensor weights, Tensor places) -> Tensor",
    combine_experts,
    fake=lambda outputs, weights, places: outputs.new_empty(weights.shape[0], outputs.shape[1]),
    cost=combine_cost,
)
register(
    "grouped_linear(Tensor x, Tensor weights, Tensor ends) -> Tensor",
    grouped_linear,
    fake=lambda x, weights, ends: x.new_empty(x.shape[0], weights.shape[1]),
    cost=grouped_cost,
    built=("cuda",),
)
