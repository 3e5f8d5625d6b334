"""`Bytes`: numbers of eight bits, int8 or e4m3, with a scale per group of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.formats.groups import GroupedWeight
from kernels.formats.tiles import BLOCK

_DIGITS = 4
"""Parts of a line from which a step has a pair of inputs each."""


@dataclass(frozen=True, slots=True)
class Bytes(GroupedWeight):
    """Step i of a line has, for each digit j, a pair of inputs: the two bytes of one output after the other."""

    def _lines(self, numbers: torch.Tensor) -> torch.Tensor:
        pairs = torch.unflatten(numbers, -1, (_DIGITS, -1, 2))
        return torch.movedim(pairs, (-2, -3), (-4, -3)).flatten(-4)

    def _numbers(self, lines: torch.Tensor) -> torch.Tensor:
        pairs = torch.unflatten(lines, -1, (-1, _DIGITS, BLOCK, 2))
        return torch.movedim(pairs, (-4, -3), (-2, -3)).flatten(-3)
