"""Weights in few bits as files store them, whatever the file: numbers, and what a group of inputs multiplies them with.

Unpack rules (`kernels/formats/stored/`) make these from bytes, and layouts pack them (`Levels`, `Bytes`). Nothing is
rounded in between: what a file stores is what is multiplied with.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [outputs, inputs] of `scale * (number - zero) + offset`, with a scale and an offset per group of inputs.

    Where there is a `table`, numbers are places in it, and its entries stand for them.
    """

    numbers: torch.Tensor
    """[outputs, inputs] uint8 of six bits or fewer; or of eight bits, int8 or float8_e4m3fn."""
    bits: int
    """Bits of a number: 4, for fewer too, 5, 6 or 8."""
    group: int
    """Consecutive inputs of an output that share a scale."""
    scales: torch.Tensor
    """[outputs, groups] fp16, bf16 or fp32; uint8 or int8 where `steps` are multiplied with them."""
    offsets: torch.Tensor | None = None
    """The same for what is added to all weights of a group."""
    zeros: torch.Tensor | int = 0
    """Number that stands for 0: the same for all groups, or [outputs, groups] int8."""
    steps: torch.Tensor | None = None
    """[outputs, spans, 1 or 2] fp16, what scales and offsets of `SPAN` consecutive inputs are multiplied with."""
    table: torch.Tensor | None = None
    """[16] fp32, what each number of four bits stands for."""
    order: torch.Tensor | None = None
    """[inputs] int64, the input that each column of `numbers` belongs to; None: its own."""

    def dense(self) -> torch.Tensor:
        """The weight [outputs, inputs] in fp32; products of fp16 scales with numbers are exact in it."""
        values = self.numbers.float() if self.table is None else self.table[self.numbers.int()]
        values = self._by_group(values)
        if isinstance(self.zeros, torch.Tensor):
            values = values - self.zeros.float()[..., None]
        elif self.zeros:
            values = values - self.zeros
        values = self._factors(self.scales, 0)[..., None] * values
        if self.offsets is not None:
            values += self._factors(self.offsets, -1)[..., None]
        weight = values.flatten(1)[:, : self.numbers.shape[1]]
        if self.order is None:
            return weight
        ordered = torch.empty_like(weight)
        ordered[:, self.order] = weight
        return ordered

    def _by_group(self, values: torch.Tensor) -> torch.Tensor:
        """[outputs, inputs] -> [outputs, groups, group]."""
        missing = -values.shape[1] % self.group
        return torch.unflatten(torch.nn.functional.pad(values, (0, missing)), 1, (-1, self.group))

    def _factors(self, stored: torch.Tensor, step: int) -> torch.Tensor:
        """Scales or offsets in fp32 -> [outputs, groups]."""
        if self.steps is None:
            return stored.float()
        steps = self.steps[..., step].float().repeat_interleave(SPAN // self.group, 1)
        return steps * stored.float()


SPAN = 256
"""Consecutive inputs that share a step."""
