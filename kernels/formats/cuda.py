"""Quantised weights in the order in which the CUDA bodies read them, see kernels/csrc/include/roundhouse/linear.h."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kernels import library
from kernels.formats.weight import PackedWeight

GROUP = 128
"""Inputs that share a step; inputs are padded to a multiple of it."""
_OUTPUTS = 16
"""Outputs in a tile."""


@dataclass(frozen=True, slots=True)
class CudaWeight(PackedWeight):
    """A quantised weight as the CUDA bodies read it."""

    scales: torch.Tensor
    """[outputs] fp32, the factor of each output's numbers; formats of groups say what theirs are."""

    @abstractmethod
    def grouped(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """`reference.grouped_linear` where the weight is a `stack` of those of all experts."""

    def common(self, weights: Sequence[CudaWeight]) -> dict[str, Any]:
        """Fields beside data and scales in which a `stack` of weights differs from the first of them."""
        return {}


def stack(weights: Sequence[CudaWeight]) -> CudaWeight:
    """Weights of one shape and format, one behind the other."""
    data, scales = torch.cat([one.data for one in weights]), torch.cat([one.scales for one in weights])
    return dataclasses.replace(weights[0], data=data, scales=scales, **weights[0].common(weights))


def serves(weight: torch.Tensor, function: str) -> bool:
    """Whether a CUDA body is built that multiplies with a weight of this shape where it lies: rows of 16 bytes."""
    return body(weight, function) is not None and weight.shape[1] % 8 == 0


def body(x: torch.Tensor, function: str) -> library.Library | None:
    """The library whose CUDA body of this name serves where x is; None if there is none."""
    found = library.of(x, function)
    return found if found is not None and found.is_cuda else None


def in_whole_rows(x: torch.Tensor) -> torch.Tensor:
    """x, copied if its rows do not begin at multiples of 16 bytes."""
    return x.clone(memory_format=torch.contiguous_format) if x.stride(0) % 8 or x.data_ptr() % 16 else x


def pack_int4(levels: torch.Tensor, steps: torch.Tensor, zeros: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Levels [outputs, inputs] (0 to 15) of weights `bf16(step * level + zero)` -> tiles of bytes, and their steps.

    steps and zeros are [outputs, ceil(inputs / 128)] bf16.
    """
    whole = _whole(levels.to(torch.int32))
    # Outputs are (tile, half, g), inputs (chunk, t, word, pair, low or high).
    parts = whole.view(-1, 2, 8, whole.shape[1] // 64, 4, 4, 2, 2)
    words = (
        (parts << _shifts(levels.device)).sum(dim=(1, 6, 7), dtype=torch.int64).to(torch.int32)
    )  # (tile, g, chunk, t, word)
    both = torch.stack((_rows(steps), _rows(zeros)), -1)  # (tile and half and g, group, step or zero)
    ordered = both.view(-1, 2, 8, steps.shape[1], 2).permute(0, 3, 2, 1, 4)
    return words.permute(0, 2, 1, 3, 4).contiguous().view(torch.uint8).flatten(), ordered.contiguous().flatten()


def unpack_int4(
    tiles: torch.Tensor, steps: torch.Tensor, outputs: int, inputs: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The arguments of `pack_int4`, with inputs padded to whole groups."""
    groups = -(-inputs // GROUP)
    words = tiles.view(torch.int32).view(-1, 2 * groups, 8, 4, 4).permute(0, 2, 1, 3, 4)
    shifts = _shifts(tiles.device)
    parts = words[:, None, :, :, :, :, None, None] >> shifts & 15
    both = steps.view(-1, groups, 8, 2, 2).permute(0, 3, 2, 1, 4).reshape(-1, groups, 2)[:outputs]
    return parts.reshape(-1, groups * GROUP)[:outputs], both[..., 0], both[..., 1]


def _shifts(device: torch.device) -> torch.Tensor:
    """Where levels are in their words, for (half, g, chunk, t, word, pair, low or high) of outputs and inputs."""
    half, pair, high = (torch.arange(2, dtype=torch.int32, device=device) for _ in range(3))
    return 4 * (half[:, None, None, None, None, None, None] + 2 * pair[:, None]) + 16 * high


def pack_int8(weight: torch.Tensor, *, alone: bool = False) -> torch.Tensor:
    """int8 [outputs, inputs] -> tiles of bytes; `alone`: for products with x in bf16."""
    whole = _whole(weight)
    if alone:
        whole = _swap(whole)
    # Outputs are (tile, half, g), inputs (chunk, t, part, byte).
    parts = whole.view(-1, 2, 8, whole.shape[1] // 64, 4, 2, 8)
    return parts.permute(0, 3, 2, 4, 5, 1, 6).contiguous().view(torch.uint8).flatten()


def unpack_int8(tiles: torch.Tensor, outputs: int, inputs: int, *, alone: bool = False) -> torch.Tensor:
    """The weight [outputs, inputs] that `pack_int8` packed."""
    padded = -(-inputs // GROUP) * GROUP
    parts = tiles.view(torch.int8).view(-1, padded // 64, 8, 4, 2, 2, 8).permute(0, 5, 2, 1, 3, 4, 6)
    whole = parts.reshape(-1, padded)
    return (_swap(whole) if alone else whole)[:outputs, :inputs].contiguous()


def _swap(whole: torch.Tensor) -> torch.Tensor:
    """Exchange the second and third of each four inputs; a second call undoes it."""
    return whole.view(len(whole), -1, 2, 2).transpose(2, 3).reshape(whole.shape)


def _whole(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, -x.shape[1] % GROUP, 0, -x.shape[0] % _OUTPUTS))


def _rows(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 0, 0, -x.shape[0] % _OUTPUTS))
