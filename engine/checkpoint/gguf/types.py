"""Types of values in GGUF files: their sizes, and where a block's scales stand.

Layouts are those of llama.cpp's `ggml/src/ggml-common.h`; all numbers are little-endian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.checkpoint.errors import CheckpointError

Bytes = npt.NDArray[np.uint8]
_HALF_EXPONENT = 0x7C00
"""Bits that are all ones only in a half-precision number that is infinite or not a number."""
_NO_POWER = 0xFF
"""Exponent that makes a power of two (E8M0) no number."""


@dataclass(frozen=True, slots=True)
class StoredType:
    """How a tensor's values are stored: blocks of `values` consecutive values of one row in `size` bytes each."""

    name: str
    values: int
    size: int
    halves: tuple[int, ...] = ()
    """Offsets in bytes of a block's half-precision scales and minima."""
    powers: tuple[int, ...] = ()
    """Offsets in bytes of a block's scales that are powers of two."""

    def row_bytes(self, inputs: int) -> int:
        return inputs // self.values * self.size

    def finite(self, data: Bytes) -> bool:
        """Whether all scales of a tensor's blocks are finite numbers."""
        blocks = data.reshape(-1, self.size)
        halves = ((blocks[:, offset + 1].astype(np.uint16) << 8) & _HALF_EXPONENT for offset in self.halves)
        powers = (blocks[:, offset] for offset in self.powers)
        return not (
            any((bits == _HALF_EXPONENT).any() for bits in halves) or any((bits == _NO_POWER).any() for bits in powers)
        )


TYPES = {
    0: StoredType("f32", 1, 4),
    1: StoredType("f16", 1, 2),
    2: StoredType("q4_0", 32, 18, (0,)),
    3: StoredType("q4_1", 32, 20, (0, 2)),
    6: StoredType("q5_0", 32, 22, (0,)),
    7: StoredType("q5_1", 32, 24, (0, 2)),
    8: StoredType("q8_0", 32, 34, (0,)),
    10: StoredType("q2_k", 256, 84, (80, 82)),
    11: StoredType("q3_k", 256, 110, (108,)),
    12: StoredType("q4_k", 256, 144, (0, 2)),
    13: StoredType("q5_k", 256, 176, (0, 2)),
    14: StoredType("q6_k", 256, 210, (208,)),
    20: StoredType("iq4_nl", 32, 18, (0,)),
    23: StoredType("iq4_xs", 256, 136, (0,)),
    30: StoredType("bf16", 1, 2),
    39: StoredType("mxfp4", 32, 17, powers=(0,)),
}
"""Types that are served, by their number in the file."""

_OTHERS = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip


def block_type(number: int, tensor: str) -> StoredType:
    """
    Raises:
        CheckpointError: weights of this type are not served; the message names type and tensor.
    """
    if found := TYPES.get(number):
        return found
    name = _OTHERS.get(number, f"number {number}")
    served = ", ".join(each.name.upper() for each in TYPES.values())
    raise CheckpointError(f"tensor {tensor!r} has the type {name}, which is not supported; these are: {served}")


def tensor_bytes(kind: StoredType, shape: tuple[int, ...], tensor: str) -> int:
    """Return the size of a tensor [..., inputs] in bytes.

    Raises:
        CheckpointError: rows are no whole blocks.
    """
    if shape[-1] % kind.values:
        raise CheckpointError(
            f"tensor {tensor!r} has rows of {shape[-1]} values, which is no multiple of the {kind.values} that a "
            f"block of {kind.name.upper()} has"
        )
    return math.prod(shape[:-1]) * kind.row_bytes(shape[-1])
