"""Products with weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def embedding(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows of `weight` [vocabulary, width] for `tokens` [T] -> [T, width].

    Moves 2 T width e bytes; no FLOPs.
    """
    return weight.index_select(0, tokens)


_OUTPUTS = 8192
"""Whose weights are widened at a time."""


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """`x @ weight.T + bias` for x [T, in], weight [out, in], bias [out] -> [T, out].

    In `out_dtype`, x's own unless it is fp32: then sums stay as they are.
    Moves (T in + in out + T out) e bytes; 2 T in out FLOPs.
    """
    if out_dtype in (None, x.dtype):
        return F.linear(x, weight, bias)
    if x.is_cuda:
        out = torch.mm(x, weight.T, out_dtype=out_dtype)
        return out if bias is None else out + bias
    # torch has no such product on CPUs, and a whole vocabulary in fp32 may be a gigabyte.
    wide = x.float()
    out = torch.cat([F.linear(wide, some.float()) for some in torch.split(weight, _OUTPUTS)], -1)
    return out if bias is None else out + bias.float()


def linear_int8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`linear` with int8 on both sides: an output's row of `weight` [out, in], int8, counts `scales` [out] each.

    Each row of x becomes whole numbers of -127 to 127 times a scale of its own, its largest magnitude over 127; one
    that is not finite gives NaN. The sums of their products are exact; everything else is in fp32, bit for bit the same
    on every instruction set.
    Moves 2 T (in + out) + in out bytes; 2 T in out operations.
    """
    wide = x.float()
    most = wide.abs().amax(-1, keepdim=True)
    # A row below 1e-30 counts as zeros: its factor would not be finite.
    none = most <= 1e-30
    # A number over a tensor would be the number times a rounded reciprocal, and a tensor over a number on some devices.
    numbers = (wide * torch.where(none, 0, torch.full_like(most, 127) / most)).round_()
    # fp64 is exact for such integers; torch's own product of int8 is wrong for some shapes, such as a single input.
    sums = numbers.double() @ weight.double().T
    scale = torch.where(none, 0, most) * (1 / 127)
    out = sums.float() * scale * scales
    return (out if bias is None else out + bias.float()).to(out_dtype or x.dtype)


def linear_w8a16(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`linear` with int8 weights alone: a row of `weight` [out, in], int8, counts `scales` [out] each; x is bf16.

    bf16 holds the numbers of the weight exactly, so this is `linear` with them, its sums of fp32 multiplied with the
    scales before they are rounded. Moves 2 T (in + out) + in out bytes; 2 T in out FLOPs.
    """
    out = F.linear(x.float(), weight.float()) * scales
    return (out if bias is None else out + bias.float()).to(out_dtype or x.dtype)
