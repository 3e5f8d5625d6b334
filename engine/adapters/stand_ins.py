"""Adapters without weights, to measure the memory that a step with adapters needs before there are any."""

from __future__ import annotations

import torch

from engine.adapters.config import MAX_RANK
from engine.adapters.layout import lay_out, shape
from engine.adapters.manifest import LoraTarget, Module
from engine.checkpoint.config import ModelConfig
from kernels import LoraAdapter
from kernels.lora.layout import CHUNK

_ATTENTION: tuple[Module, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP: tuple[Module, ...] = ("gate_proj", "up_proj", "down_proj")
_EXPERTS: tuple[Module, ...] = ("router", "experts.gate_up_proj", "experts.down_proj")


def stand_ins(config: ModelConfig, arena: torch.Tensor, sectors: range, most: int) -> list[LoraAdapter]:
    """Make adapters on all modules, of the highest rank that fits, and as many as fit: `most` at most, maybe none.

    They lie in these `sectors` of the arena [sectors, elements], which should be zeros, and need not be written.
    """
    rank = MAX_RANK
    while rank >= CHUNK:
        layout = lay_out(shape(config, _targets(config, rank)), arena.dtype)
        size = -(-layout.elements // arena.shape[1])
        count = min(len(sectors) // size, most)
        if count:
            ids = torch.tensor(sectors, device=arena.device)
            return [LoraAdapter(layout, ids[size * number : size * (number + 1)]) for number in range(count)]
        rank //= 2
    return []


def _targets(config: ModelConfig, rank: int) -> list[LoraTarget]:
    """Return targets with DoRA, which needs the most beside the products; experts have none."""
    modules: list[tuple[Module, int | None]] = [("embed_tokens", None), ("lm_head", None)]
    modules += [(m, n) for n in range(config.layers) for m in _ATTENTION + (_EXPERTS if config.experts else _MLP)]
    return [
        LoraTarget(module, layer, rank, 1.0, (), (), magnitude=None if module in _EXPERTS else "")
        for module, layer in modules
    ]
