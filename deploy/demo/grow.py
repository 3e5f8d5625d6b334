"""Widens a trained model to twice its hidden size without changing what it computes.

The idea is Net2Net's (Chen, Goodfellow and Shlens, 2015): every coordinate and every head is doubled, and whatever
reads a doubled input takes half from each copy. A little noise then lets the copies grow apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deploy.demo.model import Llama

#: Standard deviation of the noise, as a share of a matrix's own.
NOISE = 0.05


def widen(source: Llama, target: Llama) -> dict[str, Tensor]:
    """The state dict of `target` (fresh, random) that computes what `source` does, but for a little noise.

    `target` has twice the hidden size, heads and key heads, the same head size and layers, and at least as many
    intermediate neurons; additional ones keep their random input weights and start with no say.
    """
    old, fresh = source.state_dict(), target.state_dict()
    return {name: _noisy(_widened(name, old[name], fresh[name])) for name in fresh}


def _noisy(weight: Tensor) -> Tensor:
    return weight if weight.ndim == 1 else weight + torch.randn_like(weight) * weight.std() * NOISE


def _widened(name: str, old: Tensor, fresh: Tensor) -> Tensor:
    if name == "model.norm.weight":
        # Tied embeddings double the sum that makes a logit; the last norm takes it back.
        return torch.cat((old, old)) / 2
    if old.ndim == 1:
        return torch.cat((old, old))
    if name == "model.embed_tokens.weight":
        return torch.cat((old, old), dim=1)
    if "gate_proj" in name or "up_proj" in name:
        return torch.cat((torch.cat((old, old), dim=1) / 2, fresh[old.shape[0] :]))
    if "down_proj" in name:
        silent = torch.zeros(fresh.shape[0], fresh.shape[1] - old.shape[1])
        return torch.cat((torch.cat((old, old)), silent), dim=1)
    wide = torch.cat((old, old), dim=1) / 2
    return torch.cat((wide, wide))
