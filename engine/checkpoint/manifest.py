"""The manifest of a checkpoint: sizes of its files and digests of their chunks, so that damage is found and named.

It lies beside a GGUF file (`model.gguf.manifest.json`), and in a folder (`.roundhouse-manifest.json`, hidden as it is
no part of the checkpoint). It lists all files that an engine reads. Whoever made it, nothing in it is believed that the
files do not confirm.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.gguf.parts import parts_of

CHUNK_BYTES = 1 << 24
"""Bytes of a chunk in manifests that are written here; the last one of a file may have fewer."""
_IN_FOLDER = ".roundhouse-manifest.json"
_READ_SUFFIXES = (".safetensors", ".json", ".jinja")
"""Suffixes of the files that an engine reads in a folder."""
_MAX_BYTES = 64 << 20
"""Largest manifest; one of 10 TB of weights has 42 MB."""
_PIECE_BYTES = 1 << 20
"""Bytes that are read and hashed at a time: they stay in a core's cache."""


class FileDigests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a checkpoint."""

    size: Annotated[int, Meta(ge=0, le=1 << 62)]
    chunks: list[Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]]
    """BLAKE2b-256 of each chunk."""


class CheckpointManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the files of a checkpoint were when the manifest was written."""

    format: Literal[1]
    chunk_bytes: Annotated[int, Meta(ge=4096, le=1 << 30)]
    files: dict[str, FileDigests]
    """By their path in the folder."""


class Chunk(NamedTuple):
    """A range of bytes of one file."""

    file: Path
    begin: int
    end: int

    def digest(self) -> str:
        """Read the chunk and return its BLAKE2b-256; that of fewer bytes where the file ends earlier.

        Raises:
            OSError: the file cannot be read.
        """
        hasher, position = hashlib.blake2b(digest_size=32), self.begin
        buffer = memoryview(bytearray(min(_PIECE_BYTES, self.end - self.begin)))
        with self.file.open("rb", buffering=0) as file:
            while count := os.preadv(file.fileno(), [buffer[: self.end - position]], position):
                hasher.update(buffer[:count])
                position += count
        return hasher.hexdigest()


def manifest_path(checkpoint: Path) -> Path:
    """Return where the manifest of a checkpoint lies, if it has one."""
    return checkpoint / _IN_FOLDER if checkpoint.is_dir() else checkpoint.with_name(checkpoint.name + ".manifest.json")


def chunks(file: Path, size: int, chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the chunks of a file."""
    for begin in range(0, size, chunk_bytes):
        yield Chunk(file, begin, min(begin + chunk_bytes, size))


def describe(checkpoint: Path, *, threads: int | None = None) -> CheckpointManifest:
    """Read all files of a checkpoint and return their manifest.

    Args:
        threads: most chunks that are read at the same time; some more than there are CPUs unless given.

    Raises:
        CheckpointError: there is no file that an engine reads.
        OSError: one cannot be read.
    """
    files = _files(checkpoint)
    if not files:
        raise CheckpointError(f"{checkpoint} has no weights; name a folder in Hugging Face format or a GGUF file")
    with ThreadPoolExecutor(threads) as pool:
        found = {}
        for name, file in files.items():
            size = file.stat().st_size
            found[name] = FileDigests(size, list(pool.map(Chunk.digest, chunks(file, size, CHUNK_BYTES))))
    return CheckpointManifest(1, CHUNK_BYTES, found)


def write_manifest(checkpoint: Path, manifest: CheckpointManifest) -> Path:
    """Put a manifest where engines look for it, and return its path."""
    file = manifest_path(checkpoint)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    unfinished.replace(file)
    return file


def read_manifest(checkpoint: Path) -> CheckpointManifest | None:
    """Return the manifest of a checkpoint; None if it has none. No weights are read.

    Raises:
        CheckpointError: it cannot be read, or lists other files or sizes than the checkpoint has.
    """
    file = manifest_path(checkpoint)
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from error
    try:
        if len(content) > _MAX_BYTES:
            raise CheckpointError(f"it has more than {_MAX_BYTES:,} bytes")
        manifest = msgspec.json.decode(content, type=CheckpointManifest)
        _check_fit(manifest, _files(checkpoint))
    except (msgspec.DecodeError, CheckpointError, OSError) as error:
        raise CheckpointError(f"{file}: {error}; {remedy(checkpoint)}") from error
    return manifest


def remedy(checkpoint: Path) -> str:
    """Say what to do about a checkpoint that is not what its manifest says."""
    return f"fetch the checkpoint again, or, if this is meant to be it: roundhouse models digest --replace {checkpoint}"


def listed_chunks(checkpoint: Path, manifest: CheckpointManifest) -> Iterator[tuple[Chunk, str]]:
    """Yield all chunks of a checkpoint that a manifest fits, with the digests that they must have."""
    files = _files(checkpoint)
    for name, digests in manifest.files.items():
        yield from zip(chunks(files[name], digests.size, manifest.chunk_bytes), digests.chunks, strict=True)


def _files(checkpoint: Path) -> dict[str, Path]:
    """Return the files that an engine reads, by their names in a manifest."""
    if not checkpoint.is_dir():
        return {file.name: file for file in parts_of(checkpoint) if file.is_file()}
    found = [*checkpoint.iterdir(), *(checkpoint / "chat_templates").glob("*.jinja")]
    return {
        file.relative_to(checkpoint).as_posix(): file
        for file in sorted(found)
        if file.suffix in _READ_SUFFIXES and not file.name.startswith(".") and file.is_file()
    }


def _check_fit(manifest: CheckpointManifest, files: Mapping[str, Path]) -> None:
    """Raises: CheckpointError: names, sizes or numbers of chunks are not those of the files."""
    if (missing := min(manifest.files.keys() - files.keys(), default=None)) is not None:
        raise CheckpointError(f"the checkpoint has no file {missing[:200]!r}, which the manifest lists")
    if (extra := min(files.keys() - manifest.files.keys(), default=None)) is not None:
        raise CheckpointError(f"the checkpoint has a file {extra!r}, which the manifest does not list")
    for name, digests in manifest.files.items():
        if (size := files[name].stat().st_size) != digests.size:
            raise CheckpointError(f"{name} has {size:,} bytes where the manifest says {digests.size:,}")
        if len(digests.chunks) != -(-size // manifest.chunk_bytes):
            raise CheckpointError(f"{name} has {len(digests.chunks):,} digests for {size:,} bytes")
