"""Products with weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def embedding(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows of `weight` [vocabulary, width] for `tokens` [T] -> [T, width].

    Moves 2 T width e bytes; no FLOPs.
    """
    return weight.index_select(0, tokens)


def linear_int8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    limit: int,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`x @ (scales * weight).T + bias` in whole numbers: weight [out, in] int8, scales [out] -> [T, out].

    Each row of x becomes numbers of -limit to limit times a scale of its own, its largest magnitude over `limit`; one
    that is not finite gives NaN. The sums of their products are exact; everything else is in fp32, bit for bit the same
    on every instruction set.
    Moves 2 T (in + out) + in out bytes; 2 T in out operations.
    """
    wide = x.float()
    most = wide.abs().amax(-1, keepdim=True)
    # A row below 1e-30 counts as zeros: its factor would not be finite.
    none = most <= 1e-30
    # A number over a tensor would be the number times a rounded reciprocal, and a tensor over a number on some devices.
    numbers = (wide * torch.where(none, 0, torch.full_like(most, limit) / most)).round_()
    # fp64 is exact for such integers; torch's own product of int8 is wrong for some shapes, such as a single input.
    sums = numbers.double() @ weight.double().T
    scale = torch.where(none, 0, most) * (torch.ones_like(most) / torch.full_like(most, limit))
    out = sums.float() * scale * scales
    return (out if bias is None else out + bias.float()).to(out_dtype or x.dtype)


def linear_w8a16(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The same for x as it is: sums in fp32 of bf16 x with int8 weights, then multiplied with the scales, then rounded.

    Moves 2 T (in + out) + in out bytes; 2 T in out FLOPs.
    """
    out = F.linear(x.float(), weight.float()) * scales
    return (out if bias is None else out + bias.float()).to(out_dtype or x.dtype)
