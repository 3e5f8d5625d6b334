"""Weights whose outputs are stored in several parts, each in a format of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.formats.groups import GroupedWeight, join
from kernels.formats.weight import PackedWeight
from kernels.registry import Cost


def stack_weights(weights: Sequence[PackedWeight]) -> PackedWeight:
    """One weight with the outputs of all, in order; neighbours of one layout are multiplied with in one call."""
    parts: list[PackedWeight] = []
    for weight in weights:
        before = parts[-1] if parts else None
        if isinstance(before, GroupedWeight) and isinstance(weight, GroupedWeight) and before.can_join(weight):
            parts[-1] = join((before, weight))
        else:
            parts.append(weight)
    if len(parts) == 1:
        return parts[0]
    nothing = torch.empty(0, dtype=torch.uint8)
    first = parts[0]
    return StackedWeight(sum(part.outputs for part in parts), first.inputs, first.dtype, nothing, tuple(parts))


@dataclass(frozen=True, slots=True)
class StackedWeight(PackedWeight):
    """Parts of a weight, one behind the other along its outputs; `data` is empty."""

    parts: tuple[PackedWeight, ...]

    @classmethod
    def pack(cls, *weights: PackedWeight) -> PackedWeight:
        return stack_weights(weights)

    def dense(self) -> torch.Tensor:
        return torch.cat([part.dense() for part in self.parts])

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        found = []
        begin = 0
        for part in self.parts:
            end = begin + part.outputs
            found.append(part(x, None if bias is None else bias[begin:end], out_dtype))
            begin = end
        return torch.cat(found, -1)

    def cost(self, rows: int) -> Cost:
        costs = [part.cost(rows) for part in self.parts]
        return Cost(sum(cost.bytes for cost in costs), sum(cost.flops for cost in costs))
