"""What every weight format offers: a dense copy of the weight, and the product with it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kernels.registry import Cost

_OUTPUTS = 8192
"""Outputs whose weights are widened to fp32 at a time."""


@dataclass(frozen=True, slots=True)
class PackedWeight(ABC):
    """A weight [outputs, inputs] in the layout of one format on one device; calling it multiplies.

    A format is a subclass in a file of its own and a line in `FORMATS`. With `pack` and `dense` it runs everywhere;
    `__call__` is for formats whose product has a compiled body.
    """

    outputs: int
    inputs: int
    dtype: torch.dtype
    """Type of the weight before it was packed, and of the activations."""
    data: torch.Tensor
    """Packed numbers, as bytes unless the format keeps the weight as it is."""

    @classmethod
    @abstractmethod
    def pack(cls, *stored: Any, **options: Any) -> PackedWeight:
        """Pack the tensors that store the weight into the layout that their device's body reads."""

    @abstractmethod
    def dense(self) -> torch.Tensor:
        """The weight [outputs, inputs] in `dtype`, as exactly as the format holds it."""

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """`x @ weight.T + bias` for x [T, inputs], contiguous but for its rows, bias [outputs] -> [T, outputs].

        Sums are rounded to x's type, or returned as they are if `out_dtype` is fp32.
        """
        return multiply(x, self.dense(), bias, out_dtype)

    def cost(self, rows: int) -> Cost:
        """The least cost of a product with x [rows, inputs]: all tensors of the weight are read once."""
        tensors = (getattr(self, field.name) for field in dataclasses.fields(self))
        weight = sum(x.nbytes for x in tensors if isinstance(x, torch.Tensor))
        moved = rows * (self.inputs + self.outputs) * self.dtype.itemsize + weight
        return Cost(moved, 2 * rows * self.inputs * self.outputs)


def multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype | None
) -> torch.Tensor:
    """The product of `PackedWeight.__call__` in plain torch, for a dense weight [outputs, inputs]."""
    if out_dtype in (None, x.dtype):
        return F.linear(x, weight, bias)
    if x.is_cuda:
        out = torch.mm(x, weight.T, out_dtype=out_dtype)
    else:
        # torch has no such product on CPUs, and a whole vocabulary in fp32 may be a gigabyte.
        wide = x.float()
        out = torch.cat([F.linear(wide, some.float()) for some in torch.split(weight, _OUTPUTS)], -1)
    return out if bias is None else out + bias
