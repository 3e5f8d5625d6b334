"""Reads a checkpoint's safetensors files into tensors that the model has already laid out, and names their revision.

The model says for every tensor of the checkpoint where it goes (a view into a packed weight, for example); this module
copies, and refuses whatever does not fit by name. Files are mapped into memory, so that a tensor is read once and the
page cache is all that is used twice. No other weight format is read: none of them is free of code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from engine.config import CheckpointError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_STORED = (torch.float32, torch.bfloat16, torch.float16)
_MAX_HEADER_BYTES = 100_000_000
"""safetensors' own limit."""
_SAMPLE_BYTES = 4096
_DERIVED = re.compile(r"\.rotary_emb\.inv_freq$")
"""Old Llama checkpoints store these; they follow from the config."""


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def load_weights(directory: Path, targets: Mapping[str, torch.Tensor], *, ignored: Set[str] = frozenset()) -> None:
    """Copy every tensor of the checkpoint into its target, converting to the target's dtype and device.

    Args:
        targets: checkpoint name -> tensor of the same shape.
        ignored: names that may appear although the model has no use for them.

    Raises:
        CheckpointError: a file or tensor is missing, or a tensor is unexpected, misshaped or of a quantised type.
    """
    loaded: set[str] = set()
    for name, tensor in _tensors(directory):
        target = targets.get(name)
        if target is None:
            if name in ignored or _DERIVED.search(name):
                continue
            raise CheckpointError(
                f"{directory}: unexpected tensor {name!r}; the weights do not belong to this config.json"
            )
        if tensor.shape != target.shape:
            raise CheckpointError(
                f"{directory}: tensor {name!r} has shape {list(tensor.shape)} where config.json implies "
                f"{list(target.shape)}"
            )
        if tensor.dtype not in _STORED:
            raise CheckpointError(
                f"{directory}: tensor {name!r} is stored as {tensor.dtype}; store float32, bfloat16 or float16"
            )
        target.copy_(tensor)
        loaded.add(name)
    missing = sorted(targets.keys() - loaded)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{directory}: missing tensor {missing[0]!r}{more}; is a shard missing from the index?")


def revision_digest(directory: Path) -> str:
    """32 hex digits that name this checkpoint's content without reading all of it.

    Covers config.json and the index byte for byte, and of every safetensors file its name, size, header (names, types,
    shapes and offsets of all tensors) and the first 4 KiB of each tensor's data. A checkpoint trained further, merged
    or converted differs; one edited by hand in the middle of a tensor only does not.
    """
    hasher = hashlib.blake2b(digest_size=16, person=b"checkpoint")
    for name in ("config.json", _INDEX):
        path = directory / name
        hasher.update(path.read_bytes() if path.exists() else b"")
    for path in _files(directory):
        hasher.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        for piece in _sampled(path):
            hasher.update(piece)
    return hasher.hexdigest()


def _files(directory: Path) -> list[Path]:
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


def _weight_map(index: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{index.name}: {error}") from error


def _tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in _files(directory):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    yield name, file.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{path} is not a valid safetensors file: {error}; fetch it again") from error


def _sampled(path: Path) -> Iterator[bytes]:
    """The header of a safetensors file and the beginning of each tensor."""
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
