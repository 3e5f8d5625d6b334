"""`Bytes`: numbers of eight bits, int8 or e4m3, with a scale per group of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.formats.groups import LINE, GroupedWeight
from kernels.formats.tiles import BLOCK

_TILE = 64
"""Inputs in a tile."""


@dataclass(frozen=True, slots=True)
class Bytes(GroupedWeight):
    """Tiles of 16 outputs by 64 bytes of consecutive inputs, two for each 128 inputs."""

    @property
    def bits(self) -> int:
        return 8

    def _lines(self, numbers: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(numbers, -1, (LINE // _TILE, _TILE)).transpose(-2, -3).flatten(-3)

    def _numbers(self, lines: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(lines, -1, (LINE // _TILE, BLOCK, _TILE)).transpose(-2, -3).flatten(-2)
