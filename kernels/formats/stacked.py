"""Weights whose outputs are stored in several parts, each in a format of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.formats.groups import GroupedWeight
from kernels.formats.weight import PackedWeight
from kernels.registry import Cost


def stack_weights(parts: Sequence[PackedWeight]) -> PackedWeight:
    """One weight with the outputs of all, in order."""
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
        out = x.new_empty(x.shape[0], self.outputs, dtype=out_dtype)
        begin = 0
        for part in self.parts:
            end = begin + part.outputs
            of_part, to = None if bias is None else bias[begin:end], out[:, begin:end]
            if isinstance(part, GroupedWeight):
                part.write(x, of_part, to)
            else:
                to.copy_(part(x, of_part, out_dtype))
            begin = end
        return out

    def cost(self, rows: int) -> Cost:
        costs = [part.cost(rows) for part in self.parts]
        return Cost(sum(cost.bytes for cost in costs), sum(cost.flops for cost in costs))
