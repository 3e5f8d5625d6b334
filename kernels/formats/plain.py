"""Weights in the type of the checkpoint: as they are where torch multiplies, in tiles for the CPU's bodies."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels import library
from kernels.formats import tiles
from kernels.formats.weight import PackedWeight
from kernels.registry import register


@dataclass(frozen=True, slots=True)
class Plain(PackedWeight):
    """The weight itself, which torch multiplies."""

    @classmethod
    def pack(cls, weight: torch.Tensor) -> PackedWeight:
        if library.of(weight, "linear") is not None and weight.dtype in library.TYPES:
            return PlainTiles.pack(weight)
        outputs, inputs = weight.shape
        return cls(outputs, inputs, weight.dtype, weight)

    def dense(self) -> torch.Tensor:
        return self.data


@dataclass(frozen=True, slots=True)
class PlainTiles(PackedWeight):
    """An fp32 or bf16 weight in tiles."""

    @classmethod
    def pack(cls, weight: torch.Tensor) -> PlainTiles:
        outputs, inputs = weight.shape
        return cls(outputs, inputs, weight.dtype, tiles.tile(weight))

    def dense(self) -> torch.Tensor:
        return tiles.untile(self.data, self.dtype, self.outputs, self.inputs)

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        body = tiles.body(x, self.dtype)
        if body is None:
            return PackedWeight.__call__(self, x, bias, out_dtype)
        return tiles.run(body.linear, x, self.outputs, out_dtype, self.data, bias)


register(
    "linear(Tensor x, Tensor tiles, Tensor? bias, int outputs, ScalarType? out_dtype=None) -> Tensor",
    lambda x, data, bias, outputs, out_dtype=None: tiles.run(
        library.required(x).linear, x, outputs, out_dtype, data, bias
    ),
    fake=lambda x, data, bias, outputs, out_dtype=None: x.new_empty(x.shape[0], outputs, dtype=out_dtype),
    cost=PackedWeight.cost,
    built=("cpu",),
)
