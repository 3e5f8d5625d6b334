"""Rotary embedding, and where keys and values go."""

from __future__ import annotations

import torch


def rotary_embedding(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate `heads` [T, H + K, D] (queries and keys side by side) in place: RoFormer's embedding, in halves.

    Dimension i < D/2 is paired with i + D/2. cos and sin are [T, 1, D] with both halves filled; the first half of sin
    is negated, so that the result is `heads * cos + swap_halves(heads) * sin`.
    Moves 2 T (H + K) D e + 2 T D e bytes; 3 T (H + K) D FLOPs.
    """
    tokens, count, dim = heads.shape
    swapped = heads.view(tokens, count, 2, dim // 2).flip(2).view(tokens, count, dim)
    heads.mul_(cos).addcmul_(swapped, sin)


def store_kv(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Write key and value [T, K, D] into the caches [blocks, block_size, K, D] at `slots` [T] (block * size + offset).

    Moves 4 T K D e bytes; no FLOPs.
    """
    key_cache.flatten(0, 1).index_copy_(0, slots, key)
    value_cache.flatten(0, 1).index_copy_(0, slots, value)
