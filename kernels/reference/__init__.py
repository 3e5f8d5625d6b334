"""Every op of the engine in plain torch: the specification that faster bodies must equal, and what runs without them.

The exception is attention, whose specification takes a row at a time: without a library, the fast path in plain torch
(`kernels.attention.fast_torch`) runs.

Notation: T tokens of a batch, H query heads, K key/value heads, D head dimension, e bytes per element. Each op states
the bytes that it must at least move and the floating-point operations that it must at least do.
"""

from kernels.reference.activation import gelu_and_mul, silu_and_mul
from kernels.reference.attention import paged_attention
from kernels.reference.linear import embedding, linear_int8, linear_w8a16
from kernels.reference.moe import ExpertRouting, combine_experts, grouped_linear, moe, route_tokens
from kernels.reference.norm import add_rms_norm, rms_norm
from kernels.reference.rotary import rope_and_store
from kernels.reference.sampling import apply_penalties, apply_token_bitmask, argmax, log_sum_exp, sample

__all__ = [
    "ExpertRouting",
    "add_rms_norm",
    "apply_penalties",
    "apply_token_bitmask",
    "argmax",
    "combine_experts",
    "embedding",
    "gelu_and_mul",
    "grouped_linear",
    "linear_int8",
    "linear_w8a16",
    "log_sum_exp",
    "moe",
    "paged_attention",
    "rms_norm",
    "rope_and_store",
    "route_tokens",
    "sample",
    "silu_and_mul",
]
