"""Products with weights, which are packed once for the body that will serve."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels import library, reference
from kernels.memory import Workspace, empty_in_huge_pages
from kernels.registry import Cost, register

_BLOCK = 16
"""Outputs of a block, see kernels/csrc/cpu/linear.h."""
_WIDTH = {torch.float32: 1, torch.bfloat16: 32}
"""Inputs of a tile."""
_LINE = 64
"""Inputs that the workspace counts as a whole number of."""
_workspace = Workspace()


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [outputs, inputs] in the form that `linear` takes on its device; only this module looks into it."""

    outputs: int
    inputs: int
    dtype: torch.dtype
    """Of what it was packed from, and of the activations."""
    data: torch.Tensor
    tiled: bool
    """Whether `data` is in tiles for the CPU's bodies; it is the weight itself otherwise."""

    def dense(self) -> torch.Tensor:
        """The weight that `linear` multiplies with -> [outputs, inputs]."""
        if not self.tiled:
            return self.data
        tiles = self.data.view(self.dtype).view(-(-self.outputs // _BLOCK), -1, _BLOCK, _WIDTH[self.dtype])
        return tiles.transpose(1, 2).flatten(2).flatten(0, 1)[: self.outputs, : self.inputs].contiguous()


def pack_weight(weight: torch.Tensor) -> PackedWeight:
    """Bring a weight [outputs, inputs] into the form that is fastest on its device, which may be itself."""
    outputs, inputs = weight.shape
    tiled = weight.is_cpu and library.cpu is not None and weight.dtype in _WIDTH
    return PackedWeight(outputs, inputs, weight.dtype, _tile(weight) if tiled else weight, tiled)


def _tile(weight: torch.Tensor) -> torch.Tensor:
    """Into tiles, filled up with zeros -> bytes."""
    outputs, inputs = weight.shape
    width = _WIDTH[weight.dtype]
    blocks, tiles = -(-outputs // _BLOCK), -(-inputs // width)
    whole = F.pad(weight, (0, tiles * width - inputs, 0, blocks * _BLOCK - outputs))
    packed = empty_in_huge_pages(whole.nbytes)
    shape = blocks, tiles, _BLOCK, width
    packed.view(weight.dtype).view(shape).copy_(whole.view(blocks, _BLOCK, tiles, width).transpose(1, 2))
    return packed


def linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`reference.linear` for x [T, inputs], dense but for its rows -> [T, outputs]."""
    if not weight.tiled or library.cpu is None:
        return reference.linear(x, weight.dense(), bias)
    return _linear(x, weight.data, bias, weight.outputs)


def _linear(x: torch.Tensor, tiles: torch.Tensor, bias: torch.Tensor | None, outputs: int) -> torch.Tensor:
    rows, inputs = x.shape
    out = torch.empty(rows, outputs, dtype=x.dtype)
    body = library.cpu
    assert body is not None
    # As `linear_workspace` in kernels/csrc/cpu/linear.h counts, which checks it.
    body.linear(out, x, tiles, bias, _workspace.of(-(-rows // _BLOCK) * _BLOCK * -(-inputs // _LINE) * _LINE * 4))
    return out


def linear_cost(rows: int, outputs: int, inputs: int, itemsize: int) -> Cost:
    return Cost((rows * (inputs + outputs) + inputs * outputs) * itemsize, 2 * rows * inputs * outputs)


register(
    "linear(Tensor x, Tensor tiles, Tensor? bias, int outputs) -> Tensor",
    _linear,
    fake=lambda x, tiles, bias, outputs: torch.empty(x.shape[0], outputs, dtype=x.dtype, device=x.device),
    cost=linear_cost,
)
