"""Gated activations, between the two products of a feed-forward layer."""

from __future__ import annotations

import torch

from kernels import library, reference
from kernels.registry import Cost, register


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """`reference.silu_and_mul`: x [T, 2 n] with rows without gaps -> [T, n]."""
    body = library.of(x)
    if body is None or x.dtype not in library.TYPES:
        return reference.silu_and_mul(x)
    out = _half(x)
    body.silu_and_mul(out, x)
    return out


def gelu_and_mul(x: torch.Tensor, tanh: bool) -> torch.Tensor:
    """`reference.gelu_and_mul`: x [T, 2 n] with rows without gaps -> [T, n]."""
    body = library.of(x)
    if body is None or x.dtype not in library.TYPES:
        return reference.gelu_and_mul(x, tanh)
    out = _half(x)
    body.gelu_and_mul(out, x, tanh)
    return out


def _half(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


def and_mul_cost(rows: int, width: int, itemsize: int) -> Cost:
    """Cost for outputs [rows, width]; an exponential counts as one operation."""
    return Cost(3 * rows * width * itemsize, 5 * rows * width)


register("silu_and_mul(Tensor x) -> Tensor", silu_and_mul, fake=_half, cost=and_mul_cost)
register("gelu_and_mul(Tensor x, bool tanh) -> Tensor", gelu_and_mul, fake=lambda x, tanh: _half(x), cost=and_mul_cost)
