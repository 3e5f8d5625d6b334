"""Finds a checkpoint's files and names their content. Free of torch: the adapter registry uses it too."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.source import StoredTensor

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000
"""Largest header that safetensors itself accepts."""
_SAMPLE_BYTES = 4096


class _Entry(msgspec.Struct, frozen=True):
    """Type, shape and place of a tensor, as a safetensors header says them."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def weight_files(directory: Path) -> list[Path]:
    """List the safetensors files of a checkpoint.

    Raises:
        CheckpointError: there are none, or the index names something else.
    """
    index = directory / _INDEX
    if not index.exists():
        single = directory / _SINGLE
        if not single.exists():
            raise CheckpointError(
                f"{directory} has neither {_SINGLE} nor {_INDEX}; save the model in safetensors format "
                "(save_pretrained of transformers does)"
            )
        return [single]
    files = [directory / name for name in sorted(set(_weight_map(index).values()))]
    for path in files:
        if path.parent != directory or not path.is_file():
            raise CheckpointError(f"{index.name} names {path.name!r}, which is not a file in {directory}")
    return files


def revision_digest(directory: Path) -> str:
    """Return 32 hex digits that name this checkpoint's content without reading all of it.

    Covers config.json and the index byte for byte, and of every safetensors file its name, size, header (names, types,
    shapes and offsets of all tensors) and the first 4 KiB of each tensor's data. A checkpoint trained further, merged
    or converted differs; one edited by hand in the middle of a tensor only does not.
    """
    hasher = hashlib.blake2b(digest_size=16, person=b"checkpoint")
    for name in ("config.json", _INDEX):
        path = directory / name
        hasher.update(path.read_bytes() if path.exists() else b"")
    for path in weight_files(directory):
        hasher.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        for piece in _sampled(path):
            hasher.update(piece)
    return hasher.hexdigest()


def served_revision(revision: str, quantize: str | None, yarn_factor: float | None) -> str:
    """Name a checkpoint as it is served: KV and answers of what options have changed are not those of the plain one."""
    for option, value in (("quantize", quantize), ("yarn_factor", yarn_factor)):
        if value is not None:
            text = f"{revision}\0{option}\0{value}".encode()
            revision = hashlib.blake2b(text, digest_size=16, person=b"served").hexdigest()
    return revision


def _weight_map(index: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{index.name}: {error}") from error


def stored_tensors(path: Path) -> Iterator[StoredTensor]:
    """Yield the tensors of a safetensors file, whose bytes are views of the mapped file.

    Raises:
        CheckpointError: it is no valid safetensors file.
    """
    try:
        with safe_open(path, framework="np"):
            pass  # the library's own checks: sizes, offsets, overlaps
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a valid safetensors file: {error}; fetch it again") from error
    with path.open("rb") as file:
        length, _, entries = _read_header(path, file)
    data = np.memmap(path, np.uint8, mode="r")[8 + length :]
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        rows = math.prod(entry.shape[:-1])
        values = data[begin:end].reshape(*entry.shape[:-1], (end - begin) // rows if rows else 0)
        yield StoredTensor(name, entry.dtype.lower(), entry.shape, values)


def _sampled(path: Path) -> Iterator[bytes]:
    """Yield the header of a safetensors file and the beginning of each tensor."""
    with path.open("rb") as file:
        length, header, entries = _read_header(path, file)
        yield header
        for begin, end in sorted(entry.data_offsets for entry in entries.values()):
            file.seek(8 + length + begin)
            yield file.read(min(end - begin, _SAMPLE_BYTES))


def _read_header(path: Path, file: BinaryIO) -> tuple[int, bytes, dict[str, _Entry]]:
    """Return a header's length, its bytes, and the tensors that it names."""
    length = int.from_bytes(file.read(8), "little")
    if length > _MAX_HEADER_BYTES:
        raise CheckpointError(f"{path} is not a valid safetensors file; fetch it again")
    header = file.read(length)
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        return length, header, {name: msgspec.json.decode(entry, type=_Entry) for name, entry in entries.items()}
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path} is not a valid safetensors file: {error}; fetch it again") from error
