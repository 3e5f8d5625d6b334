"""Finds a checkpoint's files and names their content. Free of torch: the adapter registry uses it too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.checkpoint.errors import CheckpointError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000
"""Largest header that safetensors itself accepts."""
_SAMPLE_BYTES = 4096


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


def quantized_revision(revision: str, quantize: str | None) -> str:
    """Name a checkpoint whose weights have been quantised: its KV and answers are not those of the plain one."""
    if quantize is None:
        return revision
    return hashlib.blake2b(f"{revision}\0{quantize}".encode(), digest_size=16, person=b"quantized").hexdigest()


def _weight_map(index: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{index.name}: {error}") from error


def _sampled(path: Path) -> Iterator[bytes]:
    """Yield the header of a safetensors file and the beginning of each tensor."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise CheckpointError(f"{path} is not a valid safetensors file; fetch it again")
        header = file.read(length)
        yield header
        try:
            entries = msgspec.json.decode(header, type=dict[str, dict[str, object]])
            offsets = sorted(
                msgspec.convert(entry["data_offsets"], tuple[int, int])
                for name, entry in entries.items()
                if name != "__metadata__"
            )
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError) as error:
            raise CheckpointError(f"{path} is not a valid safetensors file: {error}; fetch it again") from error
        for begin, end in offsets:
            file.seek(8 + length + begin)
            yield file.read(min(end - begin, _SAMPLE_BYTES))
