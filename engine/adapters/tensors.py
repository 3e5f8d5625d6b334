"""Reads the header of a safetensors file strictly, and raw tensor bytes without torch.

The format: eight bytes with the header's length, the header as JSON (name -> type, shape, offsets), the tensors' bytes
without gaps. https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from engine.adapters.config import AdapterError
from engine.checkpoint.source import StoredTensor

WEIGHTS = "adapter_model.safetensors"
MAX_HEADER_BYTES = 8 * 1024 * 1024
MAX_TENSORS = 20_000
_CHUNK = 16 * 1024 * 1024
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_BITS = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16}
_EXPONENT = {"float32": 0x7F80_0000, "bfloat16": 0x7F80, "float16": 0x7C00}
"""Bits that are all ones only in infinities and NaNs."""

Size = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: list[Size]
    data_offsets: tuple[Size, Size]


class Tensor(msgspec.Struct, frozen=True):
    """Type, shape and place of one tensor's bytes."""

    dtype: str
    """Type of the values: "float32", "bfloat16" or "float16"."""
    shape: tuple[int, ...]
    begin: int
    """Offset of the first byte from the file's beginning, in bytes; `end` is that behind the last."""
    end: int


def read_header(path: Path, *, max_bytes: int) -> dict[str, Tensor]:
    """Read names, types, shapes and places of a file's tensors; no tensor is read.

    Raises:
        AdapterError: the file is missing, too large, no valid safetensors file, or holds a type other than float32,
            bfloat16 and float16.
    """
    if not path.is_file():
        pickled = path.with_name("adapter_model.bin")
        if pickled.exists():
            raise AdapterError(
                f"{pickled} is a pickle and is never read; save the adapter with safe_serialization=True"
            )
        raise AdapterError(f"{path} is missing: name a folder that peft's save_pretrained wrote")
    size = path.stat().st_size
    if size > max_bytes:
        raise AdapterError(f"{path.name} has {size:,} bytes; the most is {max_bytes:,}")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise _invalid(path, f"its header says that it has {length:,} bytes")
        header = file.read(length)
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        if len(entries) > MAX_TENSORS:
            raise AdapterError(f"{path.name} has {len(entries):,} tensors; the most is {MAX_TENSORS:,}")
        decoded = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in entries.items()}
        json.loads(header, object_pairs_hook=_unique)
        with safe_open(path, framework="np"):
            pass  # the library's own checks
    except (ValueError, RecursionError, SafetensorError) as error:
        raise _invalid(path, str(error)) from error
    _check_layout(path, decoded, size - 8 - length)
    return {name: _tensor(entry, 8 + length) for name, entry in decoded.items()}


def bits(path: Path, tensor: Tensor) -> np.ndarray:
    """Map a tensor's values from the file as unsigned integers of the same width, in its shape."""
    kind = _BITS[tensor.dtype]
    count = (tensor.end - tensor.begin) // np.dtype(kind).itemsize
    if count == 0:
        return np.empty(tensor.shape, kind)
    mapped = np.memmap(path, dtype=np.uint8, mode="r", offset=tensor.begin, shape=(tensor.end - tensor.begin,))
    return np.frombuffer(mapped, dtype=kind, count=count).reshape(tensor.shape)


def all_finite(path: Path, tensor: Tensor) -> bool:
    """Whether a tensor has neither infinities nor NaNs."""
    exponent = _EXPONENT[tensor.dtype]
    return not any(((chunk & exponent) == exponent).any() for chunk in _chunks(bits(path, tensor)))


def same_values(path: Path, tensor: Tensor, stored: StoredTensor) -> bool:
    """Whether a tensor equals one of a checkpoint, if need be rounded to the first's type; a quantised one never."""
    dtype = _DTYPES.get(stored.type.upper())
    if dtype is None or tensor.shape != stored.shape:
        return False
    ours, theirs = bits(path, tensor), stored.data.reshape(-1).view(_BITS[dtype])
    return all(
        np.array_equal(a, _converted(b, dtype, tensor.dtype))
        for a, b in zip(_chunks(ours), _chunks(theirs), strict=True)
    )


def _converted(values: np.ndarray, source: str, target: str) -> np.ndarray:
    """Convert bits of one type to bits of another, rounding to nearest even as torch does."""
    if source == target:
        return values
    wide = values.view(np.float16).astype(np.float32).view(np.uint32) if source == "float16" else values
    if source == "bfloat16":
        wide = values.astype(np.uint32) << 16
    if target == "float32":
        return wide
    if target == "float16":
        with np.errstate(over="ignore"):
            return wide.view(np.float32).astype(np.float16).view(np.uint16)
    return ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)


def _chunks(values: np.ndarray) -> Iterator[np.ndarray]:
    flat = values.reshape(-1)
    for begin in range(0, len(flat), _CHUNK):
        yield flat[begin : begin + _CHUNK]


def _check_layout(path: Path, entries: dict[str, _Entry], size: int) -> None:
    """Check that the tensors' bytes follow one another and fill the file."""
    expected = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if entry.dtype not in _DTYPES:
            raise AdapterError(
                f"{path.name}: tensor {name!r} is stored as {entry.dtype}; store float32, bfloat16 or float16"
            )
        width = np.dtype(_BITS[_DTYPES[entry.dtype]]).itemsize
        if begin != expected or end - begin != math.prod(entry.shape) * width:
            raise _invalid(path, f"the offsets of {name!r} do not fit its shape or its neighbours")
        expected = end
    if expected != size:
        raise _invalid(path, f"it has {size:,} bytes of tensors where its header promises {expected:,}")


def _unique(pairs: list[tuple[str, object]]) -> None:
    """Refuse equal keys: readers of JSON differ in which of two they take."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("its header names a tensor twice")


def _tensor(entry: _Entry, base: int) -> Tensor:
    begin, end = entry.data_offsets
    return Tensor(_DTYPES[entry.dtype], tuple(entry.shape), base + begin, base + end)


def _invalid(path: Path, reason: str) -> AdapterError:
    return AdapterError(f"{path.name} is not a valid safetensors file: {reason}; save or fetch it again")
