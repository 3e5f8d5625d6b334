"""Rotary embedding of queries and keys in one pass with the writing of keys and values."""

from __future__ import annotations

import torch

from kernels import library, reference
from kernels.ops.attention import NO_SCALES
from kernels.registry import Cost, register

_TYPES = (torch.float32, torch.bfloat16)


def rope_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    table: torch.Tensor,
    rotations: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> None:
    """`reference.rope_and_store`: query [T, H, D], key and value [T, K, D] may have other tokens' heads between."""
    body = library.of(query, "rope_and_store")
    if body is None or query.dtype not in _TYPES:
        return reference.rope_and_store(
            query, key, value, table, rotations, key_cache, value_cache, slots, key_scales, value_scales
        )
    scales = (NO_SCALES if key_scales is None else key_scales, NO_SCALES if value_scales is None else value_scales)
    body.rope_and_store(query, key, value, table, rotations, key_cache, value_cache, *scales, slots)
    return None


def rope_and_store_cost(tokens: int, heads: int, kv_heads: int, dim: int, itemsize: int) -> Cost:
    return Cost(tokens * dim * (2 * (heads + 2 * kv_heads) * itemsize + 4), 3 * tokens * (heads + kv_heads) * dim)


register(
    "rope_and_store(Tensor(a!) query, Tensor key, Tensor value, Tensor table, Tensor rotations, Tensor(b!) key_cache,"
    " Tensor(c!) value_cache, Tensor slots, Tensor(d!)? key_scales=None, Tensor(e!)? value_scales=None) -> ()",
    rope_and_store,
    fake=lambda *_: None,
    cost=rope_and_store_cost,
)
