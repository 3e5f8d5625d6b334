"""`int4`: weights in levels of four bits, with a step and a zero per group of inputs (W4A16)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels import library
from kernels.formats import cuda, tiles
from kernels.formats.cuda import CudaWeight
from kernels.formats.weight import PackedWeight, multiply
from kernels.registry import register

GROUP = 128
"""Consecutive inputs of an output that share a step and a zero."""
MAX_ROWS = 64
"""Rows up to which the CUDA body unpacks weights where it multiplies; for more it pays to unpack all of them first."""
_LEVELS = 15
_ROWS = 1024
"""Outputs that are quantised at a time, so that their fp32 copies stay small."""
_WORDS = 32
"""Words of 16 bits that hold a group's levels, four in each."""


def quantize_int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sixteen levels from the smallest to the largest weight of each group of `GROUP` inputs.

    weight [outputs, inputs] -> levels 0 to 15 [outputs, groups, GROUP] as uint8, steps and zeros (what level 0
    stands for) [outputs, groups] in bf16. Inputs that the last group lacks count as zeros of the weight.
    """
    outputs, inputs = weight.shape
    groups = -(-inputs // GROUP)
    levels = torch.empty(outputs, groups, GROUP, dtype=torch.uint8, device=weight.device)
    steps, zeros = (torch.empty(outputs, groups, dtype=torch.bfloat16, device=weight.device) for _ in range(2))
    for begin in range(0, outputs, _ROWS):
        rows = slice(begin, begin + _ROWS)
        wide = F.pad(weight[rows].float(), (0, groups * GROUP - inputs)).view(-1, groups, GROUP)
        low, high = wide.amin(-1), wide.amax(-1)
        # As they are stored: the levels make up for their rounding.
        zero, step = low.bfloat16(), ((high - low) * (1 / _LEVELS)).bfloat16()
        steps[rows], zeros[rows] = step, zero
        wide -= zero.float()[..., None]
        wide /= torch.where(step > 0, step, 1).float()[..., None]
        levels[rows] = wide.round_().clamp_(0, _LEVELS)
    return levels, steps, zeros


def dequantize_int4(levels: torch.Tensor, steps: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """`step * level + zero`, rounded once to bf16 -> [outputs, groups * GROUP]."""
    # Steps have 8 bits and levels 4: their product is exact in fp32.
    return (levels.float() * steps.float()[..., None] + zeros.float()[..., None]).bfloat16().flatten(1)


@dataclass(frozen=True, slots=True)
class Int4(PackedWeight):
    """Levels in lines of 64 bytes with their groups' steps and zeros; see kernels/csrc/cpu/linear.h."""

    @classmethod
    def pack(cls, weight: torch.Tensor) -> PackedWeight:
        levels, steps, zeros = quantize_int4(weight)
        if cuda.serves(weight, "linear_int4"):
            return CudaInt4.pack(levels.flatten(1)[:, : weight.shape[1]], steps, zeros)
        outputs, groups, _ = levels.shape
        blocks = -(-outputs // tiles.BLOCK)
        missing = blocks * tiles.BLOCK - outputs
        parts = F.pad(levels, (0, 0, 0, 0, 0, missing)).view(-1, groups, 4, _WORDS).to(torch.int16)
        words = parts[:, :, 0] | parts[:, :, 1] << 4 | parts[:, :, 2] << 8 | parts[:, :, 3] << 12
        pairs = F.pad(torch.stack((steps, zeros), -1), (0, 0, 0, 0, 0, missing))
        packed = tiles.empty(blocks * groups * (tiles.BLOCK + 1) * 64, levels.device)
        lines = packed.view(blocks, groups, tiles.BLOCK + 1, 64)
        lines[:, :, 0] = pairs.view(blocks, tiles.BLOCK, groups, 2).transpose(1, 2).flatten(2).view(torch.uint8)
        by_group = words.view(blocks, tiles.BLOCK, groups, _WORDS).transpose(1, 2)
        lines[:, :, 1:] = by_group.contiguous().view(torch.uint8)
        return cls(outputs, weight.shape[1], weight.dtype, packed)

    def dense(self) -> torch.Tensor:
        groups = -(-self.inputs // GROUP)
        lines = self.data.view(-(-self.outputs // tiles.BLOCK), groups, tiles.BLOCK + 1, 64).transpose(1, 2)
        pairs = lines[:, 0].reshape(-1, groups, 64).view(torch.bfloat16).view(-1, groups, tiles.BLOCK, 2)
        steps, zeros = pairs.transpose(1, 2).reshape(-1, groups, 2).unbind(-1)
        words = lines[:, 1:].reshape(-1, groups, 64).view(torch.int16)
        levels = torch.stack([(words >> shift) & 15 for shift in (0, 4, 8, 12)], dim=2).flatten(2)
        return dequantize_int4(levels, steps, zeros)[: self.outputs, : self.inputs].to(self.dtype).contiguous()

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        body = tiles.body(x, self.dtype)
        if body is None:
            return multiply(x, self.dense(), bias, out_dtype)
        return tiles.run(body.linear_int4, x, self.outputs, out_dtype, self.data, bias)


@dataclass(frozen=True, slots=True)
class CudaInt4(CudaWeight):
    """`Int4` as the CUDA bodies read it; `scales` are pairs of a step and a zero."""

    @classmethod
    def pack(cls, levels: torch.Tensor, steps: torch.Tensor, zeros: torch.Tensor) -> CudaInt4:
        outputs, inputs = levels.shape
        return cls(outputs, inputs, torch.bfloat16, *cuda.pack_int4(levels, steps, zeros))

    def dense(self) -> torch.Tensor:
        levels, steps, zeros = cuda.unpack_int4(self.data, self.scales, self.outputs, self.inputs)
        levels = levels.view(self.outputs, -1, GROUP)
        return dequantize_int4(levels, steps, zeros)[:, : self.inputs].to(self.dtype)

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        body = cuda.body(x, "linear_int4")
        if body is None or x.dtype != self.dtype:
            return multiply(x, self.dense(), bias, out_dtype)
        if len(x) > MAX_ROWS:
            dense = x.new_empty(self.outputs, self.inputs)
            body.dequantize_int4(dense, self.data, self.scales)
            return multiply(x, dense, bias, out_dtype)
        out = x.new_empty(len(x), self.outputs, dtype=out_dtype)
        body.linear_int4(out, cuda.in_whole_rows(x), self.data, self.scales, bias)
        return out

    def grouped(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(len(x), self.outputs)
        library.required(x).grouped_linear_int4(out, cuda.in_whole_rows(x), self.data, self.scales, ends)
        return out


register(
    "linear_int4(Tensor x, Tensor groups, Tensor? bias, int outputs, ScalarType? out_dtype=None) -> Tensor",
    lambda x, data, bias, outputs, out_dtype=None: tiles.run(
        library.required(x).linear_int4, x, outputs, out_dtype, data, bias
    ),
    fake=lambda x, data, bias, outputs, out_dtype=None: x.new_empty(len(x), outputs, dtype=out_dtype),
    cost=PackedWeight.cost,
)
