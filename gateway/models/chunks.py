"""A file that arrives in chunks, each with a digest of its own, so that a damaged one costs a chunk and not the file.

Beside the file lies a sidecar: 32 bytes of BLAKE2b for each chunk of 16 MiB, zeros where the chunk is not there yet. A
chunk is written and synchronised before its digest is, so that whatever ends the process, a digest stands for bytes
that are there. The SHA-256 of the whole is computed in the pass that fetches what is missing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol

from engine.checkpoint.manifest import CHUNK_BYTES, CheckpointManifest, FileDigests

CHUNK = CHUNK_BYTES
"""Bytes of a chunk, so that its digest can stand in a manifest; the last one may have fewer."""
_DIGEST = 32
_UNKNOWN = bytes(_DIGEST)


class Ranges(Protocol):
    """Gives the bytes of a file from `start` to before `end`, or to its end."""

    def __call__(self, start: int, end: int | None) -> Iterable[bytes]: ...


class ChunkedFile:
    """A file on disk that may have gaps, with the digests of its chunks."""

    def __init__(self, path: Path, size: int | None, *, read_only: bool = False) -> None:
        """
        Args:
            size: bytes of the whole file, if that is known.
        """
        self.size = size
        self._chunk = CHUNK
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        self._file = os.open(path, flags, 0o644)
        self._sidecar = os.open(sidecar(path), flags, 0o644)

    def __enter__(self) -> ChunkedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)
        os.close(self._sidecar)

    def present(self) -> int:
        """Return how many bytes are there, going by the digests."""
        known = range(os.fstat(self._sidecar).st_size // _DIGEST)
        return sum(end - start for start, end in map(self._range, known) if self._recorded(start) != _UNKNOWN)

    def fill(self, read: Ranges) -> str:
        """Read what is missing or damaged, and return the SHA-256 of the whole file.

        Raises:
            EOFError: `read` gave fewer or more bytes than it was asked for.
            OSError: the disk is full, or cannot be read or written.
        """
        sha, position = hashlib.sha256(), 0
        while position != self.size:
            kept = self._good(position)
            end = self._gap(position) if kept is None else position + len(kept)
            for data in self._fetch(read, position, end) if kept is None else (kept,):
                sha.update(data)
                position += len(data)
            if end is None:
                self.size = position
            elif position != end:
                raise EOFError(f"the source ended at byte {position} of {self.size}")
        os.ftruncate(self._file, position)
        os.fsync(self._file)
        return sha.hexdigest()

    def damaged(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of chunks that are not what they were when they were written."""
        start = 0
        while self.size is not None and start < self.size:
            if self._recorded(start) != _UNKNOWN and self._good(start) is None:
                yield self._range(start // self._chunk)
            start += self._chunk

    def manifest(self, name: str) -> CheckpointManifest:
        """Return the manifest of a file that is whole, for checkpoints that consist of it and call it `name`."""
        assert self.size is not None
        digests = [self._recorded(start).hex() for start in range(0, self.size, self._chunk)]
        return CheckpointManifest(1, self._chunk, {name: FileDigests(self.size, digests)})

    def _range(self, index: int) -> tuple[int, int]:
        start = index * self._chunk
        return start, start + self._chunk if self.size is None else min(start + self._chunk, self.size)

    def _recorded(self, start: int) -> bytes:
        return os.pread(self._sidecar, _DIGEST, start // self._chunk * _DIGEST) or _UNKNOWN

    def _good(self, start: int) -> bytes | None:
        """Return the chunk at `start` if it is there and is what was written."""
        if self.size is None or (recorded := self._recorded(start)) == _UNKNOWN:
            return None
        _, end = self._range(start // self._chunk)
        data = _pread(self._file, start, end - start)
        return data if _blake2b(data) == recorded else None

    def _gap(self, start: int) -> int | None:
        """Return where the bytes end that must be fetched from `start` on: at the next chunk that has a digest."""
        if self.size is None:
            return None
        end = start + self._chunk
        while end < self.size and self._recorded(end) == _UNKNOWN:
            end += self._chunk
        return min(end, self.size)

    def _fetch(self, read: Ranges, start: int, end: int | None) -> Iterator[bytes]:
        for data in _cut(read(start, end), self._chunk):
            _pwrite(self._file, data, start)
            os.fdatasync(self._file)
            _pwrite(self._sidecar, _blake2b(data), start // self._chunk * _DIGEST)
            start += len(data)
            yield data


def sidecar(path: Path) -> Path:
    """Return the path of the digests of a file's chunks."""
    return path.with_name(path.name + ".chunks")


def _cut(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in chunks of `size`, the last one of what is left."""
    chunk = bytearray()
    for piece in pieces:
        chunk += piece
        while len(chunk) >= size:
            yield bytes(chunk[:size])
            del chunk[:size]
    if chunk:
        yield bytes(chunk)


def _blake2b(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def _pread(file: int, start: int, length: int) -> bytes:
    data = bytearray()
    while len(data) < length and (piece := os.pread(file, length - len(data), start + len(data))):
        data += piece
    return bytes(data)


def _pwrite(file: int, data: bytes, start: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, start)
        start += written
        view = view[written:]
