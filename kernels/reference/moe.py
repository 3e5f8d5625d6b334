"""Mixtures of experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.lora.ops import LoraExperts
from kernels.reference.activation import silu_and_mul


def moe(
    x: torch.Tensor,
    router: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    experts_per_token: int,
    lora: LoraExperts | None = None,
) -> torch.Tensor:
    """A sparse mixture of SwiGLU experts with Mixtral's routing: softmax over all experts, top k, renormalised.

    x [T, width], router [E, width], gate_up [E, 2 n, width], down [E, width, n] -> [T, width]. Tokens are sorted by
    expert, so that each expert's weights are read once; no size of a group is read back to the host. Rows of width
    and n elements must be multiples of 16 bytes, which `grouped_mm` wants. `lora` adapts all three products.
    With k experts per token and E' experts hit: moves E' 3 n width e + T (2 width + 3 k n) e bytes;
    6 T k n width + 2 T E width FLOPs.
    """
    logits = F.linear(x, router)
    if lora is not None:
        lora.adapt_router(x, logits)
    weights, experts = logits.float().softmax(dim=-1).topk(experts_per_token, dim=-1)
    weights /= weights.sum(dim=-1, keepdim=True)
    ranked, order = experts.flatten().sort(stable=True)
    token = order // experts_per_token
    ends = torch.searchsorted(ranked, torch.arange(len(router), device=x.device), right=True, out_int32=True)
    rows = x[token]
    hidden = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends)
    if lora is not None:
        lora.adapt_gate_up(rows, hidden, experts, order)
    hidden = silu_and_mul(hidden)
    output = F.grouped_mm(hidden, down.transpose(1, 2), offs=ends)
    if lora is not None:
        lora.adapt_down(hidden, output, experts, order)
    output *= weights.flatten()[order, None].to(x.dtype)
    return torch.zeros_like(x).index_add_(0, token, output)
