"""Unpack rules: from the bytes that a file stores to numbers and scales, for every type that can be served as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.formats.quantized import QuantizedWeight
from kernels.formats.stored import gguf

Unpack = Callable[[slice | torch.Tensor], QuantizedWeight]
"""Reads some outputs of a weight: a range of them, or those that a tensor names."""
PLAIN = gguf.PLAIN
"""Types that are stored as they are computed with."""
STORED_TYPES = (*PLAIN, *gguf.TYPES)
"""Types of which a tensor is read by itself, without others beside it."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows of a quantised tensor as a file stores them; a call unpacks some of them on `device`."""

    type: str
    """Stored type."""
    rows: torch.Tensor
    """[outputs, bytes of a row] uint8, maybe mapped from the file."""
    device: torch.device

    @property
    def inputs(self) -> int:
        """Weights in a row."""
        block = gguf.TYPES[self.type]
        return self.rows.shape[1] // block.bytes * block.inputs

    def __call__(self, index: slice | torch.Tensor) -> QuantizedWeight:
        return gguf.unpack(self.type, self.rows[index].to(self.device))


def stored_numbers(stored_type: str, rows: torch.Tensor) -> torch.Tensor:
    """Read rows [..., bytes of a row] uint8 of a type of `STORED_TYPES` -> [..., inputs]."""
    if stored_type in PLAIN or rows.dim() == 2:
        return gguf.dense(stored_type, rows)
    return gguf.dense(stored_type, rows.view(-1, rows.shape[-1])).view(*rows.shape[:-1], -1)
