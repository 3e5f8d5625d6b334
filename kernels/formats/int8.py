"""Weights of eight bits with a scale per output: `int8` multiplies with activations that are whole numbers of up to 15
bits, `w8a16` with activations in bf16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels import library, reference
from kernels.formats import cuda, tiles
from kernels.formats.cuda import CudaWeight
from kernels.formats.weight import PackedWeight
from kernels.registry import register

_MAX_LIMIT = 127 * 128 + 63
"""The largest number of two digits, see kernels/csrc/cpu/linear.h; `_DIGITS` of a number are rows of x there."""
_DIGITS = 2
_ROWS = 1024
"""Outputs that are quantised at a time, so that their fp32 copies stay small."""


def quantize_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One scale per output: weight [outputs, inputs] -> numbers of -127 to 127 [outputs, inputs], scales [outputs]."""
    numbers = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(len(weight), device=weight.device)
    for begin in range(0, len(weight), _ROWS):
        wide = weight[begin : begin + _ROWS].float()
        scale = wide.abs().amax(-1) * (1 / 127)
        scales[begin : begin + _ROWS] = scale
        wide /= torch.where(scale > 0, scale, 1)[:, None]
        numbers[begin : begin + _ROWS] = wide.round_().clamp_(-127, 127)
    return numbers, scales


def number_limit(numbers: torch.Tensor) -> int:
    """The largest number that activations may become, so that int32 holds every sum of products with `numbers`."""
    most = max((int(part.abs().sum(-1, dtype=torch.int32).max()) for part in torch.split(numbers, _ROWS)), default=0)
    # What the digits' own sums may be more: a low digit may be 64 below zero, and the high one 1 more for it.
    return max(1, min(_MAX_LIMIT, (2**31 - 1) // max(most, 1) - 64))


@dataclass(frozen=True, slots=True)
class _Tiled(PackedWeight):
    """int8 numbers in tiles."""

    scales: torch.Tensor
    """[outputs] fp32, the factor of each output's numbers."""

    def numbers(self) -> torch.Tensor:
        """What `scales` multiply -> [outputs, inputs]."""
        return tiles.untile(self.data, torch.int8, self.outputs, self.inputs)

    def dense(self) -> torch.Tensor:
        return (self.numbers().float() * self.scales[:, None]).to(self.dtype)


@dataclass(frozen=True, slots=True)
class W8A16(_Tiled):
    """int8 numbers for activations in bf16."""

    @classmethod
    def pack(cls, weight: torch.Tensor) -> PackedWeight:
        numbers, scales = quantize_int8(weight)
        if cuda.serves(weight, "linear_w8a16"):
            return CudaW8A16.pack(numbers, scales)
        outputs, inputs = numbers.shape
        return cls(outputs, inputs, weight.dtype, tiles.tile(numbers), scales)

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        body = tiles.body(x, self.dtype)
        if body is None:
            return reference.linear_w8a16(x, self.numbers(), self.scales, bias, out_dtype)
        return tiles.run(body.linear_w8a16, x, self.outputs, out_dtype, self.data, self.scales, bias)


@dataclass(frozen=True, slots=True)
class Int8(_Tiled):
    """int8 numbers for activations that become whole numbers."""

    totals: torch.Tensor
    """[outputs] int32, the sum of each output's numbers."""
    limit: int
    """The largest number that activations become."""

    @classmethod
    def pack(cls, weight: torch.Tensor) -> PackedWeight:
        numbers, scales = quantize_int8(weight)
        if cuda.serves(weight, "linear_int8"):
            return CudaInt8.pack(numbers, scales)
        (outputs, inputs), totals = numbers.shape, numbers.sum(-1, dtype=torch.int32)
        return cls(outputs, inputs, weight.dtype, tiles.tile(numbers), scales, totals, number_limit(numbers))

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        body = tiles.body(x, self.dtype)
        if body is None:
            return reference.linear_int8(x, self.numbers(), self.scales, self.limit, bias, out_dtype)
        return tiles.run(
            *(body.linear_int8, x, self.outputs, out_dtype),
            *(self.data, self.scales, self.totals, bias),
            layout=(self.limit,),
            digits=_DIGITS,
        )


@dataclass(frozen=True, slots=True)
class CudaW8A16(CudaWeight):
    """`W8A16` as the CUDA bodies read it."""

    @classmethod
    def pack(cls, numbers: torch.Tensor, scales: torch.Tensor) -> CudaW8A16:
        outputs, inputs = numbers.shape
        return cls(outputs, inputs, torch.bfloat16, cuda.pack_int8(numbers, alone=True), scales)

    def numbers(self) -> torch.Tensor:
        return cuda.unpack_int8(self.data, self.outputs, self.inputs, alone=True)

    def dense(self) -> torch.Tensor:
        return (self.numbers().float() * self.scales[:, None]).to(self.dtype)

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        body = cuda.body(x, "linear_w8a16")
        if body is None or x.dtype != self.dtype:
            return reference.linear_w8a16(x, self.numbers(), self.scales, bias, out_dtype)
        out = x.new_empty(len(x), self.outputs, dtype=out_dtype)
        body.linear_w8a16(out, cuda.in_whole_rows(x), self.data, self.scales, bias)
        return out

    def grouped(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(len(x), self.outputs)
        body = library.required(x)
        body.grouped_linear_w8a16(out, cuda.in_whole_rows(x), self.data, self.scales, ends)
        return out


@dataclass(frozen=True, slots=True)
class CudaInt8(CudaWeight):
    """`Int8` as the CUDA bodies read it."""

    limit: int
    """The largest number that activations become."""

    @classmethod
    def pack(cls, numbers: torch.Tensor, scales: torch.Tensor) -> CudaInt8:
        outputs, inputs = numbers.shape
        return cls(outputs, inputs, torch.bfloat16, cuda.pack_int8(numbers), scales, number_limit(numbers))

    def numbers(self) -> torch.Tensor:
        return cuda.unpack_int8(self.data, self.outputs, self.inputs)

    def dense(self) -> torch.Tensor:
        return (self.numbers().float() * self.scales[:, None]).to(self.dtype)

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        body = cuda.body(x, "linear_int8")
        if body is None or x.dtype != self.dtype:
            return reference.linear_int8(x, self.numbers(), self.scales, self.limit, bias, out_dtype)
        out = x.new_empty(len(x), self.outputs, dtype=out_dtype)
        body.linear_int8(out, x, self.data, self.scales, bias, *self._rounded(x), self.limit)
        return out

    def grouped(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(len(x), self.outputs)
        library.required(x).grouped_linear_int8(out, x, self.data, self.scales, ends, *self._rounded(x), self.limit)
        return out

    def common(self, weights: Sequence[CudaWeight]) -> dict[str, Any]:
        return {"limit": min(one.limit for one in weights if isinstance(one, CudaInt8))}

    def _rounded(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for digits of x, padded to whole groups, and its scales."""
        padded = -(-self.inputs // cuda.GROUP) * cuda.GROUP
        return x.new_empty(len(x), _DIGITS, padded, dtype=torch.int8), x.new_empty(len(x), dtype=torch.float32)


register(
    "linear_int8(Tensor x, Tensor tiles, Tensor scales, Tensor totals, Tensor? bias, int limit, "
    "ScalarType? out_dtype=None) -> Tensor",
    lambda x, data, scales, totals, bias, limit, out_dtype=None: tiles.run(
        *(library.required(x).linear_int8, x, len(scales), out_dtype, data, scales, totals, bias),
        layout=(limit,),
        digits=_DIGITS,
    ),
    fake=lambda x, data, scales, totals, bias, limit, out_dtype=None: x.new_empty(len(x), len(scales), dtype=out_dtype),
    cost=PackedWeight.cost,
)
register(
    "linear_w8a16(Tensor x, Tensor tiles, Tensor scales, Tensor? bias, ScalarType? out_dtype=None) -> Tensor",
    lambda x, data, scales, bias, out_dtype=None: tiles.run(
        library.required(x).linear_w8a16, x, len(scales), out_dtype, data, scales, bias
    ),
    fake=lambda x, data, scales, bias, out_dtype=None: x.new_empty(len(x), len(scales), dtype=out_dtype),
    cost=PackedWeight.cost,
)
