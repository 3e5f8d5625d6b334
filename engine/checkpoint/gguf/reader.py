"""Reads the header of one GGUF file strictly: everything in it is checked before it is used.

The format: magic, version, two counts, metadata (key, type, value), tensors (name, shape, type, offset), then the
tensors' bytes. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.gguf.types import Bytes, StoredType, block_type, tensor_bytes

Value = int | float | bool | str | list[bytes] | npt.NDArray[np.generic]
"""A value of the metadata; arrays of strings stay bytes, arrays of numbers views of the file."""

_MAX_HEADER_BYTES = 256 * 1024 * 1024
"""Far above what the largest vocabularies need, so that a hostile file cannot fill the memory."""
_MAX_KEYS = 65_536
_MAX_TENSORS = 1_000_000
_MAX_KEY_BYTES = 65_535
_MAX_NAME_BYTES = 64
_MAX_STRING_BYTES = 16 * 1024 * 1024
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1024 * 1024

_U32, _U64 = Struct("<I"), Struct("<Q")
_SCALARS = {
    0: Struct("<B"),
    1: Struct("<b"),
    2: Struct("<H"),
    3: Struct("<h"),
    4: _U32,
    5: Struct("<i"),
    6: Struct("<f"),
    7: Struct("<?"),
    10: _U64,
    11: Struct("<q"),
    12: Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_ARRAYS = {
    number: np.dtype("<" + kind)
    for number, kind in zip(_SCALARS, ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "u1", "u8", "i8", "f8"), strict=True)
}


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Type, shape and place of one tensor in a file."""

    type: StoredType
    shape: tuple[int, ...]
    """As in safetensors: the values of a row, which follow one another in the file, come last."""
    begin: int
    """Offset of the first byte from the file's beginning, in bytes; `end` is that behind the last."""
    end: int


class GgufFile:
    """One file: its metadata, the places of its tensors, and their bytes as views of the mapped file."""

    def __init__(self, path: Path) -> None:
        """Map the file and read its header.

        Raises:
            CheckpointError: it is no GGUF file, or one that contradicts itself; the message names the field.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {getattr(error, 'strerror', None) or 'the file is empty'}") from error
        try:
            header = _Header(mapped)
            self.metadata, self.tensors = header.metadata, header.tensors
        except CheckpointError as error:
            raise CheckpointError(f"{path.name}: {error}") from error
        self._bytes: Bytes = np.frombuffer(mapped, np.uint8)
        self.header = self._bytes[: header.end]
        """The bytes of the header."""
        self.size = len(mapped)

    def data(self, place: TensorPlace) -> Bytes:
        """Return a tensor's bytes, a view of the file [..., bytes of a row].

        The view becomes invalid, as all of them, where somebody cuts the file off: it has to stay as it is.
        """
        flat = self._bytes[place.begin : place.end]
        return flat.reshape(*place.shape[:-1], place.type.row_bytes(place.shape[-1]))


class _Header:
    """Reads a header from its beginning to its end."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        self._limit = min(len(mapped), _MAX_HEADER_BYTES)
        self._at = 0
        if self._take(4) != b"GGUF":
            raise CheckpointError("it does not begin with 'GGUF'")
        version = self._number(_U32)
        if version not in (2, 3):
            raise CheckpointError(f"its version is {version}; 2 and 3 are supported, both little-endian")
        tensors = self._count("tensors", least=24, most=_MAX_TENSORS)
        keys = self._count("keys", least=13, most=_MAX_KEYS)
        self.metadata: dict[str, Value] = {}
        for _ in range(keys):
            self._read_key()
        places = [self._read_tensor() for _ in range(tensors)]
        self.end = self._at
        self.tensors = self._placed(places, self._alignment())

    def _read_key(self) -> None:
        key = _text(self._string(_MAX_KEY_BYTES, "a key"), "a key")
        if key in self.metadata:
            raise CheckpointError(f"the key {key!r} is there twice")
        kind = self._number(_U32)
        if kind == _STRING:
            self.metadata[key] = _text(self._string(_MAX_STRING_BYTES, key), key)
        elif kind == _ARRAY:
            self.metadata[key] = self._array(key)
        elif scalar := _SCALARS.get(kind):
            value = self._number(scalar)
            if isinstance(value, float) and not math.isfinite(value):
                raise CheckpointError(f"{key} is {value}, not a finite number")
            self.metadata[key] = value
        else:
            raise CheckpointError(f"{key} has a value of the unknown type {kind}")

    def _array(self, key: str) -> list[bytes] | npt.NDArray[np.generic]:
        kind = self._number(_U32)
        if kind == _STRING:
            return self._strings(key, self._count(f"strings of {key}", least=8))
        dtype = _ARRAYS.get(kind)
        if dtype is None:
            raise CheckpointError(f"{key} is an array of the type {kind}; only numbers and strings can be in one")
        count = self._count(f"numbers of {key}", least=dtype.itemsize)
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _strings(self, key: str, count: int) -> list[bytes]:
        # A vocabulary has hundreds of thousands: nothing is called here for each that need not be.
        mapped, at, limit, length_of = self._mapped, self._at, self._limit, _U64.unpack_from
        strings = []
        for _ in range(count):
            begin = at + 8
            if begin > limit:
                raise CheckpointError(f"it ends inside {key}")
            (length,) = length_of(mapped, at)
            at = begin + length
            if length > _MAX_STRING_BYTES or at > limit:
                raise CheckpointError(f"{key} has a string of {length} bytes, which reach behind the header's end")
            strings.append(mapped[begin:at])
        self._at = at
        return strings

    def _read_tensor(self) -> tuple[str, StoredType, tuple[int, ...], int]:
        name = _text(self._string(_MAX_NAME_BYTES - 1, "a tensor's name"), "a tensor's name")
        count = self._number(_U32)
        if not 1 <= count <= _MAX_DIMENSIONS:
            raise CheckpointError(f"tensor {name!r} has {count} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
        shape = tuple(self._number(_U64) for _ in range(count))[::-1]
        if 0 in shape:
            raise CheckpointError(f"tensor {name!r} has the shape {list(shape)}; no dimension can be 0")
        return name, block_type(self._number(_U32), name), shape, self._number(_U64)

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", 32)
        if not isinstance(value, int) or not 8 <= value <= _MAX_ALIGNMENT or value & (value - 1):
            raise CheckpointError(
                f"general.alignment is {value}; a power of two from 8 to {_MAX_ALIGNMENT} is expected"
            )
        return value

    def _placed(
        self, tensors: list[tuple[str, StoredType, tuple[int, ...], int]], alignment: int
    ) -> dict[str, TensorPlace]:
        base = -(-self.end // alignment) * alignment
        places: dict[str, TensorPlace] = {}
        before, last = base, ""
        for name, kind, shape, offset in tensors:
            if name in places:
                raise CheckpointError(f"tensor {name!r} is there twice")
            begin, end = base + offset, base + offset + tensor_bytes(kind, shape, name)
            if offset % alignment:
                raise CheckpointError(f"tensor {name!r} begins at {offset}, which is no multiple of {alignment}")
            if begin < before:
                raise CheckpointError(f"tensor {name!r} begins before the end of {last!r}")
            if end > len(self._mapped):
                raise CheckpointError(
                    f"tensor {name!r} ends at byte {end} of a file with {len(self._mapped)}; fetch it again"
                )
            places[name] = TensorPlace(kind, shape, begin, end)
            before, last = end, name
        return places

    def _count(self, what: str, *, least: int, most: int | None = None) -> int:
        """Read how many there are, of which each takes at `least` so many bytes."""
        count: int = self._number(_U64)
        room = (self._limit - self._at) // least
        if count > (room if most is None else min(room, most)):
            raise CheckpointError(f"it promises {count} {what}, for which it has no room")
        return count

    def _number(self, kind: Struct) -> Any:
        return kind.unpack(self._take(kind.size))[0]

    def _string(self, most: int, what: str) -> bytes:
        length = self._number(_U64)
        if length > most:
            raise CheckpointError(f"{what} has {length} bytes; the most is {most}")
        return self._take(length)

    def _take(self, count: int) -> bytes:
        begin = self._at
        if begin + count > self._limit:
            raise CheckpointError("it ends inside its header; fetch it again")
        self._at = begin + count
        return self._mapped[begin : self._at]


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from error
