"""How weights become integers: the same on every device, in plain torch."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

Quantization = Literal["int8", "w8a16", "int4"]
"""int8: weights and activations (W8A8). w8a16: the same weights alone. int4: weights in groups of inputs (W4A16)."""
INT4_GROUP = 128
"""Consecutive inputs of an output that share a step and a zero."""
_INT4_LEVELS = 15
_ROWS = 1024
"""Outputs at a time, so that the fp32 copies stay small."""


def quantize_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One scale per output: weight [outputs, inputs] -> numbers of -127 to 127 [outputs, inputs], scales [outputs]."""
    numbers = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(len(weight), device=weight.device)
    for begin in range(0, len(weight), _ROWS):
        wide = weight[begin : begin + _ROWS].float()
        scale = wide.abs().amax(-1) * (1 / 127)
        scales[begin : begin + _ROWS] = scale
        wide /= torch.where(scale > 0, scale, 1)[:, None]
        numbers[begin : begin + _ROWS] = wide.round_().clamp_(-127, 127)
    return numbers, scales


def quantize_int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sixteen levels from the smallest to the largest weight of each group of `INT4_GROUP` inputs.

    weight [outputs, inputs] -> levels 0 to 15 [outputs, groups, INT4_GROUP] as uint8, steps and zeros (what level 0
    stands for) [outputs, groups] in bf16. Inputs that the last group lacks count as zeros of the weight.
    """
    outputs, inputs = weight.shape
    groups = -(-inputs // INT4_GROUP)
    levels = torch.empty(outputs, groups, INT4_GROUP, dtype=torch.uint8, device=weight.device)
    steps, zeros = (torch.empty(outputs, groups, dtype=torch.bfloat16, device=weight.device) for _ in range(2))
    for begin in range(0, outputs, _ROWS):
        rows = slice(begin, begin + _ROWS)
        wide = F.pad(weight[rows].float(), (0, groups * INT4_GROUP - inputs)).view(-1, groups, INT4_GROUP)
        low, high = wide.amin(-1), wide.amax(-1)
        # As they are stored: the levels make up for their rounding.
        zero, step = low.bfloat16(), ((high - low) * (1 / _INT4_LEVELS)).bfloat16()
        steps[rows], zeros[rows] = step, zero
        wide -= zero.float()[..., None]
        wide /= torch.where(step > 0, step, 1).float()[..., None]
        levels[rows] = wide.round_().clamp_(0, _INT4_LEVELS)
    return levels, steps, zeros


def dequantize_int4(levels: torch.Tensor, steps: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """`step * level + zero`, rounded once to bf16 -> [outputs, groups * INT4_GROUP]."""
    # Steps have 8 bits and levels 4: their product is exact in fp32.
    return (levels.float() * steps.float()[..., None] + zeros.float()[..., None]).bfloat16().flatten(1)
