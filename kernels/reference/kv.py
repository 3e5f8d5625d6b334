"""The keys and values of a layer, and how they become fewer bits."""

from __future__ import annotations

from typing import NamedTuple

import torch


class LayerCache(NamedTuple):
    """One layer's keys and values as ops see them: tables and slots count its blocks, wherever these lie in memory."""

    keys: torch.Tensor
    values: torch.Tensor
    """[blocks, block_size, kv_heads, head_dim]"""
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None
    """[blocks, block_size, kv_heads] fp32, what keys and values in int8 are multiplied with; None for other types."""


_MOST_INT8 = 127


def quantize_kv(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """x [..., D] in fp32 as `dtype`, and for int8 the scales [...] with which it is to be multiplied.

    fp16 saturates at 65504 and fp8 e4m3 at 448. Of int8 the largest magnitude of each vector is 127.
    """
    if dtype in (torch.float16, torch.float8_e4m3fn):
        most = torch.finfo(dtype).max
        return x.clamp(-most, most).to(dtype), None
    if dtype != torch.int8:
        return x.to(dtype), None
    scales = x.abs().amax(-1) / _MOST_INT8
    steps = torch.where(scales == 0, 1, scales).unsqueeze(-1)
    return (x / steps).round().to(dtype), scales


def dequantize_kv(x: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """What `quantize_kv` made, rounded to `dtype`."""
    return x.to(dtype) if scales is None else (x.float() * scales.unsqueeze(-1)).to(dtype)
