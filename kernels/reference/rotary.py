"""Rotary embedding, and where keys and values go."""

from __future__ import annotations

import torch

from kernels.reference.kv import LayerCache, quantize_kv


def rope_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    table: torch.Tensor,
    rotations: torch.Tensor,
    cache: LayerCache,
    slots: torch.Tensor,
) -> None:
    """Rotate query [T, H, D] in place (RoFormer's embedding, in halves); write rotated key and value [T, K, D].

    Of the first R dimensions, i < R/2 is paired with i + R/2; the others stay as they are. Row rotations[t] of `table`
    [rows, R] fp32 holds the cosines of token t's R/2 angles and then their sines. Keys and values go into the cache at
    slots [T] (block * block_size + offset), in the cache's type, int8 with scales (see `quantize_kv`).
    """
    cos, sin = table.index_select(0, rotations).unsqueeze(1).chunk(2, dim=-1)
    query.copy_(_rotated(query, cos, sin))
    block_size = cache.keys.shape[1]
    place = (slots // block_size, slots % block_size)
    stores = (
        (_rotated(key, cos, sin), cache.keys, cache.key_scales),
        (value.float(), cache.values, cache.value_scales),
    )
    for x, target, target_scales in stores:
        stored, scales = quantize_kv(x, target.dtype)
        # As bytes: torch has no index_put_ for fp8.
        _bits(target).index_put_(place, _bits(stored))
        if scales is not None:
            assert target_scales is not None
            target_scales.index_put_(place, scales)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


def _rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    low, high, rest = heads.float().tensor_split((half, 2 * half), dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin, rest), dim=-1)
