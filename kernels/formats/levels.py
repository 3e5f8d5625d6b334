"""`Levels`: numbers of four bits or fewer with a scale per group of inputs, or a table of what they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.formats.groups import LINE, GroupedWeight
from kernels.formats.tiles import BLOCK

_WORDS = 32
"""Words of 16 bits that hold an output's 128 levels, four in each."""


@dataclass(frozen=True, slots=True)
class Levels(GroupedWeight):
    """Lines of 64 bytes per output and 128 inputs: the j-th lowest four bits of word i are the level of 32 j + i."""

    @property
    def bits(self) -> int:
        return 4

    def _lines(self, numbers: torch.Tensor) -> torch.Tensor:
        digits = torch.unflatten(numbers, -1, (LINE // _WORDS, _WORDS))
        low, high = (digits[..., j, :] | digits[..., j + 1, :] << 4 for j in (0, 2))
        return torch.stack((low, high), -1).flatten(-2)

    def _numbers(self, lines: torch.Tensor) -> torch.Tensor:
        low, high = torch.unflatten(lines, -1, (BLOCK, _WORDS, 2)).unbind(-1)
        return torch.cat((low & 15, low >> 4, high & 15, high >> 4), -1)
