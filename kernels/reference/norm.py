"""Normalisation."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension (Zhang and Sennrich, 2019).

    `weight` is [width], or has x's trailing dimensions, e.g. [heads, D] for x [T, heads, D] with a weight per head.
    Moves 2 |x| e bytes; 4 |x| FLOPs.
    """
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(x.dtype)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Add x [T, width] to `residual` in place and return `rms_norm` of the sum.

    Moves 4 |x| e bytes; 5 |x| FLOPs.
    """
    return rms_norm(residual.add_(x), weight, eps)
