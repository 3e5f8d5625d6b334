"""Normalisation, with and without the residual before it."""

from __future__ import annotations

import torch

from kernels import library, reference
from kernels.registry import Cost, register


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`reference.rms_norm`: x [T, width] or [T, heads, width], dense but for its tokens -> the same, contiguous."""
    body = library.of(x)
    if body is None or x.dtype not in library.TYPES:
        return reference.rms_norm(x, weight, eps)
    out = x.new_empty(x.shape)
    body.rms_norm(out, x, weight, eps)
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`reference.add_rms_norm`: adds x [T, width] to `residual` in place, and normalises the sum."""
    body = library.of(x)
    if body is None or x.dtype not in library.TYPES:
        return reference.add_rms_norm(x, residual, weight, eps)
    out = torch.empty_like(x)
    body.add_rms_norm(out, x, residual, weight, eps)
    return out


def rms_norm_cost(rows: int, width: int, itemsize: int) -> Cost:
    return Cost(2 * rows * width * itemsize, 4 * rows * width)


def add_rms_norm_cost(rows: int, width: int, itemsize: int) -> Cost:
    return Cost(4 * rows * width * itemsize, 5 * rows * width)


register(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    rms_norm,
    fake=lambda x, weight, eps: torch.empty(x.shape, dtype=x.dtype, device=x.device),
    cost=rms_norm_cost,
)
register(
    "add_rms_norm(Tensor x, Tensor(a!) residual, Tensor weight, float eps) -> Tensor",
    add_rms_norm,
    fake=lambda x, residual, weight, eps: torch.empty_like(x),
    cost=add_rms_norm_cost,
)
