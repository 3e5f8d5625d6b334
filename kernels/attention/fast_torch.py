"""Paged attention's fast path in plain torch, where no library is built: a call for each group of rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.attention.groups import SHORT, Fresh, Paged
from kernels.attention.plan import AttentionPlan
from kernels.reference.kv import LayerCache, dequantize_kv


def paged_attention(query: torch.Tensor, cache: LayerCache, plan: AttentionPlan) -> torch.Tensor:
    """`reference.paged_attention`, for caches that hold finite numbers in every block that a table names.

    It masks what lies beyond a row's length, where the specification skips it.
    """
    outputs: list[torch.Tensor] = []
    for group in plan.groups(cache.keys, query.dtype):
        key = _gather(cache.keys, cache.key_scales, group, query.dtype)
        value = _gather(cache.values, cache.value_scales, group, query.dtype)
        run = _fresh if isinstance(group, Fresh) else _paged
        outputs.append(run(query[group.begin : group.end], key, value, group))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _gather(cache: torch.Tensor, scales: torch.Tensor | None, group: Fresh | Paged, dtype: torch.dtype) -> torch.Tensor:
    """The blocks of a group -> [rows, K, keys, D]."""
    # As bytes: torch has no index_select for fp8.
    bits = cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
    blocks = bits.index_select(0, group.blocks).view(cache.dtype)
    if cache.dtype != dtype:
        blocks = dequantize_kv(blocks, None if scales is None else scales.index_select(0, group.blocks), dtype)
    return blocks.reshape(group.rows, -1, *cache.shape[2:]).transpose(1, 2)


def _fresh(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: Fresh | Paged) -> torch.Tensor:
    """key, value: [rows, K, keys, D], with keys behind the last row's that do not count."""
    q = query.view(group.rows, group.count, *query.shape[1:]).transpose(1, 2)
    k, v = key[:, :, : group.count], value[:, :, : group.count]
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=group.mask, is_causal=group.mask is None, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2).reshape(len(query), -1)


def _paged(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: Fresh | Paged) -> torch.Tensor:
    """key, value: [rows, K, keys, D]."""
    _, heads, dim = query.shape
    kv_heads, keys = key.shape[1:3]
    shared = heads // kv_heads
    if group.count == 1:
        # One query per row: the heads that share a KV head become the query dimension, so KV is read once.
        q = query.view(group.rows, kv_heads, shared, dim)
        mask = None if group.mask is None else group.mask.expand(-1, -1, shared, keys)
        return F.scaled_dot_product_attention(q, key, value, attn_mask=mask).reshape(group.rows, -1)
    if group.count <= SHORT:
        # The same for a few queries per row, next to each other: up to three times as fast as heads one by one.
        q = query.view(group.rows, group.count, kv_heads, shared, dim).transpose(1, 2).flatten(2, 3)
        mask = None if group.mask is None else group.mask.repeat_interleave(shared, dim=2)
        out = F.scaled_dot_product_attention(q, key, value, attn_mask=mask)
        return out.view(group.rows, kv_heads, group.count, shared, dim).transpose(1, 2).reshape(len(query), -1)
    q = query.view(group.rows, group.count, heads, dim).transpose(1, 2)
    out = F.scaled_dot_product_attention(q, key, value, attn_mask=group.mask, enable_gqa=heads != kv_heads)
    return out.transpose(1, 2).reshape(len(query), -1)
