"""The formats in which weights lie in memory: each is a class that packs a weight and multiplies with it.

A weight is packed once, at load, into the layout that its device's body reads; nothing outside this folder looks into a
packed weight. `FORMATS` lists the formats that a loaded weight can take. Weights that files store in few bits keep what
is stored: an unpack rule of `stored/` makes a `QuantizedWeight`, which is packed as `Levels` or `Bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    "pack_stacked",
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
    weight = _unpacked(outputs, unpack, dtype)
    return weight.pack([weight], [unpack])


def _unpacked(outputs: int, unpack: Unpack, dtype: torch.dtype) -> GroupedWeight:
    stored = unpack(slice(0, 1))
    return (Bytes if stored.bits == 8 else Levels).unpacked(outputs, stored, dtype)


def pack_stacked(parts: Sequence[tuple[torch.Tensor, Unpack | None]]) -> PackedWeight:
    """Pack weights [outputs, inputs] as one with the outputs of all, in order.

    Those with a rule are what it gives; neighbours of one layout are multiplied with in one call.
    """
    stacked: list[PackedWeight] = []
    same: list[tuple[GroupedWeight, Unpack]] = []
    for dense, unpack in parts:
        weight = None if unpack is None else _unpacked(len(dense), unpack, dense.dtype)
        if same and not (weight is not None and same[-1][0].can_join(weight)):
            stacked.append(_pack_same(same))
            same = []
        if unpack is None or weight is None:
            stacked.append(pack_weight(dense))
        else:
            same.append((weight, unpack))
    if same:
        stacked.append(_pack_same(same))
    return stack_weights(stacked)


def _pack_same(parts: list[tuple[GroupedWeight, Unpack]]) -> GroupedWeight:
    weights, rules = zip(*parts, strict=True)
    packed: GroupedWeight = weights[0].pack(weights, rules)
    return packed
