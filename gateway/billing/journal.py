"""The journal: entries that a gateway has yet to write to Redis, on its disk, so that they survive the process.

A writer (one gateway process) owns `<writer>.lock`, locked while it lives, and numbered segments of lines. New lines go
to the newest segment; a segment whose lines are all in Redis is deleted. `<writer>.running` holds what had been
delivered in the turns that were running when it was last written. Whoever finds the files of a dead writer can lock
them and finish its work: `orphans`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("roundhouse.billing")


class JournalFull(OSError):
    """The journal has reached its size because Redis has been away for too long."""


class Journal:
    """The files of one writer. Only its owner may use it."""

    def __init__(self, folder: Path, writer: str, lock: int, *, limit: int) -> None:
        self.writer = writer
        self._folder = folder
        self._lock = lock
        self._limit = limit
        self._newest: int | None = None
        self._file = -1
        """File of the newest segment, if this process has begun it."""
        self._size = 0
        self._sealed = {number: self._segment(number).stat().st_size for number in sorted(self._numbers())}
        """Sizes of the sealed segments, oldest first."""
        self._read: dict[int, int] = {}
        """Bytes of each sealed segment that need not be read again."""

    @classmethod
    def create(cls, folder: Path, *, limit: int) -> Journal:
        """Create the journal of a new writer, which holds `limit` bytes at most.

        Raises:
            OSError: the folder cannot be used.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(3):  # another gateway may take a lock file that nobody holds yet for a dead writer's
            writer = secrets.token_hex(8)
            lock = _locked(folder / f"{writer}.lock", os.O_CREAT)
            if lock is not None:
                return cls(folder, writer, lock, limit=limit)
        raise OSError(f"{folder}: files cannot be locked there")

    @classmethod
    def orphans(cls, folder: Path) -> Iterator[Journal]:
        """Take over the journals of dead writers."""
        for path in sorted(folder.glob("*.lock")):
            try:
                lock = _locked(path, 0)
            except FileNotFoundError:  # another gateway was faster and is done with it
                continue
            except OSError as error:  # it may be another user's
                log.warning("usage journal cannot be opened", extra={"file": str(path), "error": str(error)})
                continue
            if lock is not None:
                yield cls(folder, path.stem, lock, limit=0)

    @property
    def growing(self) -> bool:
        """Whether a segment that is not sealed has lines."""
        return self._size > 0

    @property
    def empty(self) -> bool:
        """Whether everything that was appended has been deleted again."""
        return not self._sealed and self._size == 0

    def append(self, line: bytes) -> None:
        """Add a line, without its end. It survives this process when this returns, and the machine after `sync`.

        Raises:
            OSError: it could not be written whole; the journal is as before.
        """
        data = line + b"\n"
        if sum(self._sealed.values()) + self._size + len(data) > self._limit:
            raise JournalFull(f"the usage journal has reached {self._limit} bytes")
        if self._file < 0:
            self._begin()
        try:
            written = os.write(self._file, data)
            if written < len(data):
                raise OSError(f"the disk took {written} of {len(data)} bytes")
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def sealed(self) -> list[int]:
        """Numbers of the sealed segments, oldest first. If there is none, the newest segment is sealed."""
        if not self._sealed and self._size:
            os.close(self._file)
            assert self._newest is not None
            self._sealed[self._newest] = self._size
            self._file, self._size = -1, 0
        return list(self._sealed)

    def lines(self, segment: int, most: int = 65_536) -> Iterator[list[bytes]]:
        """Lines of a sealed segment, about `most` bytes at a time. What the consumer comes back after is done with, and
        will not be given again by this object.

        A last line without an end is left out: its writer died while it wrote it, so nobody was told of its turn's end.
        """
        with self._segment(segment).open("rb") as file:
            while True:
                offset = self._read.get(segment, 0)
                file.seek(offset)
                data = file.read(most)
                if data and b"\n" not in data:
                    data += file.readline()
                whole, end, _ = data.rpartition(b"\n")
                if not end:
                    return
                yield whole.split(b"\n")
                self._read[segment] = offset + len(whole) + 1

    def rewind(self, segment: int) -> None:
        """Give the lines of a sealed segment again."""
        self._read.pop(segment, None)

    def delete(self, segment: int) -> None:
        """Delete a sealed segment once everything in it is in Redis."""
        self._segment(segment).unlink(missing_ok=True)
        del self._sealed[segment]
        self._read.pop(segment, None)

    def sync(self) -> None:
        """Flush everything to the disk. Blocks: call it in a thread."""
        paths = [self._segment(number) for number in self._sealed]
        if self._size and self._newest is not None:
            paths.append(self._segment(self._newest))
        for path in paths:
            try:
                file = os.open(path, os.O_RDONLY)
            except FileNotFoundError:  # it has reached Redis meanwhile
                continue
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def checkpoint(self, running: bytes) -> None:
        """Replace the checkpoint of the running turns.

        Raises:
            OSError: it could not be written; the last one stays.
        """
        path = self._folder / f"{self.writer}.running"
        if running:
            draft = path.with_suffix(".draft")
            draft.touch(0o600)
            draft.write_bytes(running)
            draft.replace(path)
        else:
            path.unlink(missing_ok=True)

    def running(self) -> bytes:
        """Read the last checkpoint."""
        try:
            return (self._folder / f"{self.writer}.running").read_bytes()
        except FileNotFoundError:
            return b""

    def remove(self) -> None:
        """Delete the journal once everything in it is in Redis."""
        for name in (".running", ".draft", ".lock"):
            (self._folder / (self.writer + name)).unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the journal; another process may take it over."""
        for file in (self._file, self._lock):
            if file >= 0:
                os.close(file)
        self._file = self._lock = -1

    def _begin(self) -> None:
        number = (self._newest if self._newest is not None else max(self._sealed, default=0)) + 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.open(self._segment(number), flags, 0o600)
        self._newest = number

    def _segment(self, number: int) -> Path:
        return self._folder / f"{self.writer}-{number}.journal"

    def _numbers(self) -> Iterator[int]:
        for path in self._folder.glob(f"{self.writer}-*.journal"):
            yield int(path.stem.rpartition("-")[2])


def _locked(path: Path, create: int) -> int | None:
    """Open and lock a file; None if another process has it. Children do not inherit the lock."""
    file = os.open(path, os.O_RDWR | create, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another one may have deleted it between the two calls.
        if os.fstat(file).st_nlink:
            return file
    except BlockingIOError:
        pass
    os.close(file)
    return None
