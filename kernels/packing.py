"""Weights in the forms that the bodies of `linear` take; kernels/csrc/cpu/linear.h says how they lie in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from kernels import library, packing_cuda
from kernels.memory import empty_in_huge_pages
from kernels.quantization import INT4_GROUP, Quantization, dequantize_int4, quantize_int4, quantize_int8

_BLOCK = 16
"""Outputs of a block."""
_WIDTH = {torch.float32: 1, torch.bfloat16: 32, torch.int8: 64}
"""Inputs of a tile."""
_WORDS = 32
"""Words of 16 bits that hold a group of int4 levels, four in each."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [outputs, inputs] in the form that `linear` takes on its device; only `kernels` looks into it."""

    outputs: int
    inputs: int
    dtype: torch.dtype
    """Of what it was packed from, and of the activations."""
    kind: Literal["plain", "tiles", "int8", "w8a16", "int4"]
    """`plain`: the weight itself. `tiles`: in tiles for the CPU's bodies. Quantised weights are in tiles everywhere."""
    data: torch.Tensor
    scales: torch.Tensor | None = None
    """int8, w8a16: [outputs], what a number is multiplied with. int4 for the CUDA bodies: steps and zeros."""
    totals: torch.Tensor | None = None
    """int8: [outputs], the sum of an output's numbers."""
    for_cuda: bool = False
    """Whether quantised numbers lie as the CUDA bodies read them (`kernels.packing_cuda`)."""

    def dense(self) -> torch.Tensor:
        """The weight, after quantisation as near as that left it -> [outputs, inputs] in `dtype`."""
        if self.kind == "plain":
            return self.data
        if self.kind == "tiles":
            return self._untile(self.dtype)
        if self.kind in ("int8", "w8a16"):
            assert self.scales is not None
            return (self.numbers().float() * self.scales[:, None]).to(self.dtype)
        if self.for_cuda:
            assert self.scales is not None
            levels, steps, zeros = packing_cuda.unpack_int4(self.data, self.scales, self.outputs, self.inputs)
            levels = levels.view(self.outputs, -1, INT4_GROUP)
            return dequantize_int4(levels, steps, zeros)[:, : self.inputs].to(self.dtype)
        groups = -(-self.inputs // INT4_GROUP)
        lines = self.data.view(-(-self.outputs // _BLOCK), groups, _BLOCK + 1, 64).transpose(1, 2)
        pairs = lines[:, 0].reshape(-1, groups, 64).view(torch.bfloat16).view(-1, groups, _BLOCK, 2).transpose(1, 2)
        steps, zeros = pairs.reshape(-1, groups, 2).unbind(-1)
        words = lines[:, 1:].reshape(-1, groups, 64).view(torch.int16)
        levels = torch.stack([(words >> shift) & 15 for shift in (0, 4, 8, 12)], dim=2).flatten(2)
        weight = dequantize_int4(levels, steps, zeros)[: self.outputs, : self.inputs]
        return weight.to(self.dtype).contiguous()

    def numbers(self) -> torch.Tensor:
        """Of an int8 or w8a16 weight: what `scales` multiply -> [outputs, inputs]."""
        if self.for_cuda:
            return packing_cuda.unpack_int8(self.data, self.outputs, self.inputs, alone=self.kind == "w8a16")
        return self._untile(torch.int8)

    def _untile(self, dtype: torch.dtype) -> torch.Tensor:
        tiles = self.data.view(dtype).view(-(-self.outputs // _BLOCK), -1, _BLOCK, _WIDTH[dtype])
        return tiles.transpose(1, 2).flatten(2).flatten(0, 1)[: self.outputs, : self.inputs].contiguous()


def pack_weight(weight: torch.Tensor, quantize: Quantization | None = None) -> PackedWeight:
    """Bring a weight [outputs, inputs] into the form that is fastest on its device, which may be itself.

    Args:
        quantize: int8 multiplies with activations that become int8, too; w8a16 and int4 with them as they are.

    Raises:
        ValueError: a weight that is not in bf16 is to be quantised.
    """
    outputs, inputs = weight.shape
    if quantize is None:
        if (
            weight.is_cpu
            and library.of(weight, "linear") is not None
            and weight.dtype in (torch.float32, torch.bfloat16)
        ):
            return PackedWeight(outputs, inputs, weight.dtype, "tiles", _tile(weight))
        return PackedWeight(outputs, inputs, weight.dtype, "plain", weight)
    if weight.dtype != torch.bfloat16:
        raise ValueError(f"only bfloat16 weights can be quantised, not {weight.dtype}")
    body = library.of(weight, f"linear_{quantize}")
    # Rows of 16 bytes are what the CUDA bodies take.
    for_cuda = body is not None and body.cuda and inputs % 8 == 0
    if quantize == "int8":
        numbers, scales = quantize_int8(weight)
        if for_cuda:
            data = packing_cuda.pack_int8(numbers)
            return PackedWeight(outputs, inputs, weight.dtype, "int8", data, scales, for_cuda=True)
        totals = numbers.sum(-1, dtype=torch.int32)
        return PackedWeight(outputs, inputs, weight.dtype, "int8", _tile(numbers), scales, totals)
    if quantize == "w8a16":
        numbers, scales = quantize_int8(weight)
        if for_cuda:
            data = packing_cuda.pack_int8(numbers, alone=True)
            return PackedWeight(outputs, inputs, weight.dtype, "w8a16", data, scales, for_cuda=True)
        return PackedWeight(outputs, inputs, weight.dtype, "w8a16", _tile(numbers), scales)
    levels, steps, zeros = quantize_int4(weight)
    if for_cuda:
        data, pairs = packing_cuda.pack_int4(levels.flatten(1), steps, zeros)
        return PackedWeight(outputs, inputs, weight.dtype, "int4", data, pairs, for_cuda=True)
    return PackedWeight(outputs, inputs, weight.dtype, "int4", _pack_int4(levels, steps, zeros))


def _empty(size: int, device: torch.device) -> torch.Tensor:
    return empty_in_huge_pages(size) if device.type == "cpu" else torch.empty(size, dtype=torch.uint8, device=device)


def _tile(weight: torch.Tensor) -> torch.Tensor:
    """Into tiles, filled up with zeros -> bytes."""
    outputs, inputs = weight.shape
    width = _WIDTH[weight.dtype]
    blocks, tiles = -(-outputs // _BLOCK), -(-inputs // width)
    whole = F.pad(weight, (0, tiles * width - inputs, 0, blocks * _BLOCK - outputs))
    packed = _empty(whole.nbytes, weight.device)
    shape = blocks, tiles, _BLOCK, width
    packed.view(weight.dtype).view(shape).copy_(whole.view(blocks, _BLOCK, tiles, width).transpose(1, 2))
    return packed


def _pack_int4(levels: torch.Tensor, steps: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """What `quantize_int4` gives, blocks filled up with zeros -> bytes."""
    outputs, groups, _ = levels.shape
    blocks = -(-outputs // _BLOCK)
    missing = blocks * _BLOCK - outputs
    parts = F.pad(levels, (0, 0, 0, 0, 0, missing)).view(-1, groups, 4, _WORDS).to(torch.int16)
    words = parts[:, :, 0] | parts[:, :, 1] << 4 | parts[:, :, 2] << 8 | parts[:, :, 3] << 12
    pairs = F.pad(torch.stack((steps, zeros), -1), (0, 0, 0, 0, 0, missing))
    packed = _empty(blocks * groups * (_BLOCK + 1) * 64, levels.device)
    lines = packed.view(blocks, groups, _BLOCK + 1, 64)
    lines[:, :, 0] = pairs.view(blocks, _BLOCK, groups, 2).transpose(1, 2).flatten(2).view(torch.uint8)
    lines[:, :, 1:] = words.view(blocks, _BLOCK, groups, _WORDS).transpose(1, 2).contiguous().view(torch.uint8)
    return packed
