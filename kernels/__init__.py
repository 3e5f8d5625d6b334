"""Ops with one meaning on every device; `reference.py` is the specification and this module the one dispatch point.

A weight may be packed once, at load, into the layout that its device's body of `linear` prefers; nothing else may look
into a packed weight.
"""

from __future__ import annotations

import torch

from kernels import onednn, reference
from kernels.attention import AttentionPlan, plan_attention
from kernels.lora.layout import LoraAdapter, LoraEmbedding, LoraLayout, LoraPart, LoraSite
from kernels.lora.ops import LoraExperts, adapt_embedding, adapt_experts, adapt_linear
from kernels.lora.plan import LoraPlan, LoraWorkspace
from kernels.ops.activation import gelu_and_mul, silu_and_mul
from kernels.ops.embedding import embedding
from kernels.ops.norm import add_rms_norm, rms_norm
from kernels.reference import (
    apply_token_bitmask,
    argmax,
    moe,
    paged_attention,
    rotary_embedding,
    sort_descending,
    store_kv,
)

__all__ = [
    "AttentionPlan",
    "LoraAdapter",
    "LoraEmbedding",
    "LoraExperts",
    "LoraLayout",
    "LoraPart",
    "LoraPlan",
    "LoraSite",
    "LoraWorkspace",
    "adapt_embedding",
    "adapt_experts",
    "adapt_linear",
    "add_rms_norm",
    "apply_token_bitmask",
    "argmax",
    "embedding",
    "gelu_and_mul",
    "linear",
    "moe",
    "pack_weight",
    "paged_attention",
    "plan_attention",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
    "sort_descending",
    "store_kv",
]


def pack_weight(weight: torch.Tensor) -> torch.Tensor:
    """The fastest form of `weight` [out, in] that `linear` takes on its device; the weight itself if that is plain."""
    return onednn.pack(weight) if onednn.supports(weight) else weight


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`reference.linear` for a weight that came from `pack_weight`."""
    if weight.is_mkldnn:
        return onednn.linear(x, weight, bias)
    return reference.linear(x, weight, bias)
