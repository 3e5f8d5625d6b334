"""Mixtures of experts."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from kernels.reference.activation import silu_and_mul


class ExpertRouting(NamedTuple):
    """Which experts tokens go to. Pairs (token, choice) are numbered token * k + choice; they are also put in order:
    by expert, and those of an expert by token."""

    weights: torch.Tensor
    """[T, k] in fp32; a token's sum is 1."""
    experts: torch.Tensor
    """[T, k]."""
    order: torch.Tensor
    """[T * k], pairs in that order."""
    places: torch.Tensor
    """[T, k], where each pair is in it."""
    tokens: torch.Tensor
    """[T * k], of each place its token."""
    ends: torch.Tensor
    """[E], where each expert's pairs end in the order."""


def route_tokens(logits: torch.Tensor, experts_per_token: int) -> ExpertRouting:
    """Mixtral's routing of logits [T, E]: softmax over all experts in fp32, top k, renormalised.

    Moves T E e bytes; 2 T E FLOPs.
    """
    weights, experts = logits.float().softmax(dim=-1).topk(experts_per_token, dim=-1)
    weights /= weights.sum(dim=-1, keepdim=True)
    ranked, order = experts.flatten().sort(stable=True)
    ends = torch.searchsorted(ranked, torch.arange(logits.shape[1], device=logits.device), right=True)
    return ExpertRouting(weights, experts, order, order.argsort().view(experts.shape), order // experts_per_token, ends)


def grouped_linear(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows x [T, inputs] in order of their experts times `weights` [E, outputs, inputs] -> [T, outputs].

    Expert e has rows `ends[e - 1]` to `ends[e]`. Rows of inputs and outputs must be multiples of 16 bytes, which
    `grouped_mm` wants.
    With E' experts hit: moves (E' outputs inputs + T (inputs + outputs)) e bytes; 2 T inputs outputs FLOPs.
    """
    return F.grouped_mm(x, weights.transpose(1, 2), offs=ends.int())


def combine_experts(outputs: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Each token's k `outputs` [T * k, width], at its `places` [T, k], summed with its `weights` in fp32 -> [T, width].

    Moves (k + 1) T width e bytes; 2 k T width FLOPs.
    """
    wide = outputs.index_select(0, places.flatten()).view(*places.shape, -1).float()
    return (wide * weights[:, :, None]).sum(dim=1).to(outputs.dtype)


def moe(
    x: torch.Tensor, router: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, experts_per_token: int
) -> torch.Tensor:
    """A sparse mixture of SwiGLU experts with Mixtral's routing: softmax over all experts, top k, renormalised.

    x [T, width], router [E, width], gate_up [E, 2 n, width], down [E, width, n] -> [T, width]. Tokens are sorted by
    expert, so that each expert's weights are read once; no size of a group is read back to the host. Rows of width
    and n elements must be those of `grouped_linear`.
    With k experts per token and E' experts hit: moves E' 3 n width e + T (2 width + 3 k n) e bytes;
    6 T k n width + 2 T E width FLOPs.
    """
    routing = route_tokens(F.linear(x, router), experts_per_token)
    hidden = silu_and_mul(grouped_linear(x[routing.tokens], gate_up, routing.ends))
    return combine_experts(grouped_linear(hidden, down, routing.ends), routing.weights, routing.places)
