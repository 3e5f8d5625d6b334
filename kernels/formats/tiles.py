"""Blocks of 16 outputs, the layout that the CPU's bodies of `linear` read; see kernels/csrc/cpu/linear.h."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kernels import library
from kernels.memory import Workspace, empty_in_huge_pages

BLOCK = 16
"""Outputs in a block."""
_GROUP = 128
"""Inputs are padded to a multiple of this in the workspace."""
_WIDTH = {torch.float32: 1, torch.bfloat16: 32, torch.int8: 64}
"""Inputs in a tile."""
_workspace = Workspace()


def empty(size: int, device: torch.device) -> torch.Tensor:
    """Memory for `size` packed bytes."""
    return empty_in_huge_pages(size) if device.type == "cpu" else torch.empty(size, dtype=torch.uint8, device=device)


def tile(weight: torch.Tensor) -> torch.Tensor:
    """Pack a weight [outputs, inputs] into tiles, padded with zeros -> bytes."""
    outputs, inputs = weight.shape
    width = _WIDTH[weight.dtype]
    blocks, tiles = -(-outputs // BLOCK), -(-inputs // width)
    whole = F.pad(weight, (0, tiles * width - inputs, 0, blocks * BLOCK - outputs))
    packed = empty(whole.nbytes, weight.device)
    shape = blocks, tiles, BLOCK, width
    packed.view(weight.dtype).view(shape).copy_(whole.view(blocks, BLOCK, tiles, width).transpose(1, 2))
    return packed


def untile(data: torch.Tensor, dtype: torch.dtype, outputs: int, inputs: int) -> torch.Tensor:
    """The weight [outputs, inputs] that `tile` packed."""
    tiles = data.view(dtype).view(-(-outputs // BLOCK), -1, BLOCK, _WIDTH[dtype])
    return tiles.transpose(1, 2).flatten(2).flatten(0, 1)[:outputs, :inputs].contiguous()


def body(x: torch.Tensor, dtype: torch.dtype) -> library.Library | None:
    """The library that multiplies x with tiles packed from a weight of `dtype`; None if there is none."""
    return library.of(x, "linear") if x.dtype is dtype else None


def run(
    function: Any,
    x: torch.Tensor,
    outputs: int,
    out_dtype: torch.dtype | None,
    *tensors: torch.Tensor | None,
    layout: tuple[int, ...] = (),
    digits: int = 1,
) -> torch.Tensor:
    """Call one of the library's functions with x [T, inputs] and the tensors of a weight -> [T, outputs]."""
    out = x.new_empty(x.shape[0], outputs, dtype=out_dtype)
    return run_into(out, function, x, *tensors, layout=layout, digits=digits)


def run_into(
    out: torch.Tensor,
    function: Any,
    x: torch.Tensor,
    *tensors: torch.Tensor | None,
    layout: tuple[int, ...] = (),
    digits: int = 1,
) -> torch.Tensor:
    """Do so with `out` given.

    `layout` says how the weight lies, where the function serves several layouts, or what else it asks for; `digits` is
    how many rows a row of x becomes.
    """
    rows, inputs = x.shape
    # As much as `linear_workspace` in kernels/csrc/cpu/linear.h says; the bodies check it.
    size = (-(-rows * digits // 16) + torch.get_num_threads()) * 80 * -(-inputs // _GROUP) * _GROUP
    function(out, x, *tensors, _workspace.of(size), *layout)
    return out
