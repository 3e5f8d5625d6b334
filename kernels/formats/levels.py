"""`Levels`: numbers of six bits or fewer with a scale per group of inputs, or a table of what they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.formats.groups import GroupedWeight
from kernels.formats.tiles import BLOCK

_DIGITS = 4
"""Lowest four bits of levels in a word of 16 bits."""


@dataclass(frozen=True, slots=True)
class Levels(GroupedWeight):
    """Step i of a line has a pair of words of each output, whose j-th lowest four bits are levels of digit j.

    The fifth bits of four steps are in words behind them, or the fifth and sixth ones of two.
    """

    def _lines(self, numbers: torch.Tensor) -> torch.Tensor:
        digits = torch.unflatten(numbers, -1, (_DIGITS, -1, 2))
        low, high = (digits[..., j, :, :] & 15 | digits[..., j + 1, :, :] << 4 for j in (0, 2))
        steps = torch.stack((low, high), -1).transpose(-3, -4)
        more = self.bits - 4
        if more == 0:
            return steps.flatten(-4)
        # [..., outputs, digits, units, steps of one, 2]
        high_bits = torch.unflatten(digits >> 4, -2, (-1, 4 // more)).int()
        words = (high_bits << self._places(numbers.device)[:, None, :, None]).sum((-4, -2))
        both = torch.stack((words & 255, words >> 8), -1).to(torch.uint8).transpose(-3, -4)
        units = torch.unflatten(steps, -4, (-1, 4 // more))
        return torch.cat((units, both.unsqueeze(-4)), -4).flatten(-5)

    def _numbers(self, lines: torch.Tensor) -> torch.Tensor:
        more = self.bits - 4
        pairs = 4 // more if more else 1
        units = torch.unflatten(lines, -1, (-1, pairs + (more > 0), BLOCK, 2, 2))
        low, high = units[..., :pairs, :, :, :].flatten(-5, -4).transpose(-3, -4).unbind(-1)
        levels = torch.stack((low & 15, low >> 4, high & 15, high >> 4), -3)
        if more:
            words = units[..., pairs, :, :, :].transpose(-3, -4).int()
            words = words[..., 0] | words[..., 1] << 8
            bits = words[..., None, :, None, :] >> self._places(lines.device)[:, None, :, None] & (1 << more) - 1
            levels |= bits.flatten(-3, -2).to(torch.uint8) << 4
        return levels.flatten(-3)

    def _places(self, device: torch.device) -> torch.Tensor:
        """Where the words behind some steps have the lowest of the bits of each digit and step -> [digits, steps]."""
        more = self.bits - 4
        digits, steps = torch.arange(_DIGITS, device=device), torch.arange(4 // more, device=device)
        return more * (_DIGITS * steps + digits[:, None])
