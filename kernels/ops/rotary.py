"""Rotary embedding of queries and keys in one pass with the writing of keys and values."""

from __future__ import annotations

import torch

from kernels import library, reference
from kernels.ops.attention import native_cache
from kernels.reference.kv import LayerCache
from kernels.registry import Cost, register


def rope_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    table: torch.Tensor,
    rotations: torch.Tensor,
    cache: LayerCache,
    slots: torch.Tensor,
) -> None:
    """`reference.rope_and_store`: query [T, H, D], key and value [T, K, D] may have other tokens' heads between."""
    body = library.of(query, "rope_and_store")
    if body is None or query.dtype not in library.TYPES:
        reference.rope_and_store(query, key, value, table, rotations, cache, slots)
    else:
        body.rope_and_store(query, key, value, table, rotations, *native_cache(cache), slots)


def rope_and_store_cost(tokens: int, heads: int, kv_heads: int, dim: int, itemsize: int) -> Cost:
    return Cost(tokens * dim * (2 * (heads + 2 * kv_heads) * itemsize + 4), 3 * tokens * (heads + kv_heads) * dim)


register(
    "rope_and_store(Tensor(a!) query, Tensor key, Tensor value, Tensor table, Tensor rotations, Tensor(b!) key_cache,"
    " Tensor(c!) value_cache, Tensor slots, Tensor(d!)? key_scales=None, Tensor(e!)? value_scales=None) -> ()",
    lambda query, key, value, table, rotations, keys, values, slots, *scales: rope_and_store(
        query, key, value, table, rotations, LayerCache(keys, values, *scales), slots
    ),
    fake=lambda *_: None,
    cost=rope_and_store_cost,
)
