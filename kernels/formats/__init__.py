"""The formats in which weights lie in memory: each is a class that packs a weight and multiplies with it.

A weight is packed once, at load, into the layout that its device's body reads; nothing outside this folder looks into a
packed weight. `FORMATS` lists the formats that a loaded weight can take. Weights that files store in few bits keep what
is stored: an unpack rule of `stored/` makes a `QuantizedWeight`, which is packed as `Levels` or `Bytes`.
"""

from __future__ import annotations

from typing import Literal

import torch

from kernels.formats.bytes import Bytes
from kernels.formats.groups import GroupedWeight
from kernels.formats.int4 import Int4
from kernels.formats.int8 import W8A16, Int8
from kernels.formats.levels import Levels
from kernels.formats.plain import Plain
from kernels.formats.quantized import QuantizedWeight
from kernels.formats.stacked import stack_weights
from kernels.formats.stored import Unpack
from kernels.formats.weight import PackedWeight

Quantization = Literal["int8", "w8a16", "int4"]
"""Formats that weights in bf16 can be brought into when they are loaded."""
FORMATS: dict[str | None, type[PackedWeight]] = {None: Plain, "int8": Int8, "w8a16": W8A16, "int4": Int4}
"""Formats by name; None keeps the numbers of the checkpoint."""

__all__ = [
    "FORMATS",
    "PackedWeight",
    "Quantization",
    "QuantizedWeight",
    "pack_quantized",
    "pack_weight",
    "stack_weights",
]


def pack_weight(weight: torch.Tensor, quantize: Quantization | None = None) -> PackedWeight:
    """Bring a weight [outputs, inputs] into a format.

    Raises:
        ValueError: a weight that is not in bf16 is to be quantised.
    """
    if quantize is not None and weight.dtype != torch.bfloat16:
        raise ValueError(f"only bfloat16 weights can be quantised, not {weight.dtype}")
    return FORMATS[quantize].pack(weight)


def pack_quantized(outputs: int, unpack: Unpack, dtype: torch.dtype) -> GroupedWeight:
    """Pack the numbers and scales that a file stores, and nothing else, for activations of type `dtype`.

    Args:
        unpack: gives the rows of a range of outputs; not all of them need be in memory at a time.

    Raises:
        ValueError: groups of inputs are of a length that no layout has.
    """
    layout = Levels if unpack(slice(0, 1)).bits == 4 else Bytes
    return layout.pack(outputs, unpack, dtype)
