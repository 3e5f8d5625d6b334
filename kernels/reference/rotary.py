"""Rotary embedding, and where keys and values go."""

from __future__ import annotations

import torch


def rope_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    table: torch.Tensor,
    rotations: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Rotate query [T, H, D] in place (RoFormer's embedding, in halves); write rotated key and value [T, K, D].

    Dimension i < D/2 is paired with i + D/2. Row rotations[t] of `table` [rows, D] fp32 holds the cosines of token t's
    D/2 angles and then their sines. Keys and values go into the caches [blocks, block_size, K, D] at slots [T]
    (block * block_size + offset).
    """
    cos, sin = table.index_select(0, rotations).unsqueeze(1).chunk(2, dim=-1)
    query.copy_(_rotated(query, cos, sin))
    place = (slots // key_cache.shape[1], slots % key_cache.shape[1])
    key_cache.index_put_(place, _rotated(key, cos, sin))
    value_cache.index_put_(place, value)


def _rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = heads.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(heads.dtype)
