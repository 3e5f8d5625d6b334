"""Products with weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def embedding(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows of `weight` [vocabulary, width] for `tokens` [T] -> [T, width].

    Moves 2 T width e bytes; no FLOPs.
    """
    return weight.index_select(0, tokens)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x @ weight.T + bias` for x [T, in], weight [out, in], bias [out] -> [T, out].

    Moves (T in + in out + T out) e bytes; 2 T in out FLOPs.
    """
    return F.linear(x, weight, bias)
