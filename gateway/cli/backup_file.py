"""The file that `roundhouse backup` writes: frames of MessagePack, each after its length, and a digest of them all.

The first frame is a `BackupHeader`. A `KeyFrame` is followed by `PartFrame`s with what the key holds. The last frame
is an `EndFrame` with the BLAKE2b digest of every byte before it, so that a file that was cut off or damaged is found
before anything of it is restored. Both sides hold one frame at a time.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec
from msgspec import Struct

VERSION = 1
"""Version of the format; a reader refuses those that it does not know."""
_LENGTH = struct.Struct(">I")
_LARGEST = 256 * 1024 * 1024
"""Bytes of a frame; more are a damaged length."""

RedisType = Literal["hash", "zset", "string", "stream"]


class DamagedBackup(Exception):
    """The file is no backup, or not a whole one; the message says what is wrong."""


class BackupHeader(Struct, frozen=True, kw_only=True, tag="roundhouse-backup", tag_field="frame"):
    """What a backup is of."""

    version: int = VERSION
    created: int
    """Time in ms since 1970, by Redis' clock."""
    fingerprint: str
    """Of the installation's secret, without which sealed values cannot be opened."""
    families: list[str]
    adapters: dict[str, str]
    """Versions of the registered adapters, by name; the adapters themselves stay in their registry."""


class KeyFrame(Struct, frozen=True, tag="key", tag_field="frame"):
    """A key begins."""

    name: bytes
    type: RedisType
    expires: int
    """Time in ms since 1970 at which it expires; 0 for never."""


class PartFrame(Struct, frozen=True, tag="part", tag_field="frame"):
    """A part of what the key holds: alternating fields and values of a hash, members and scores of a sorted set, ids
    and fields of a stream; or the value of a string."""

    items: list[Any]


class EndFrame(Struct, frozen=True, tag="end", tag_field="frame"):
    """The end."""

    keys: int
    digest: bytes


Frame = BackupHeader | KeyFrame | PartFrame | EndFrame
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


class BackupWriter:
    """Writes a new file, which is deleted again if its block is left by an error.

    Raises:
        FileExistsError: it exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")
        self._digest = hashlib.blake2b(digest_size=32)
        self.keys = 0

    def __enter__(self) -> BackupWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is not None:
            self._path.unlink()

    def write(self, frame: Frame) -> None:
        """Append a frame."""
        data = _encoder.encode(frame)
        whole = _LENGTH.pack(len(data)) + data
        self._digest.update(whole)
        self._file.write(whole)
        self.keys += isinstance(frame, KeyFrame)

    def place(self) -> tuple[int, Any, int]:
        """Return where the file stands, for `back_to`."""
        return self._file.tell(), self._digest.copy(), self.keys

    def back_to(self, place: tuple[int, Any, int]) -> None:
        """Drop what was written since `place`."""
        offset, digest, self.keys = place
        self._digest = digest.copy()
        self._file.seek(offset)
        self._file.truncate()

    def end(self) -> int:
        """Write the end, and have the disk keep it; return the file's bytes."""
        self.write(EndFrame(self.keys, self._digest.digest()))
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()


def read(path: Path) -> Iterator[tuple[int, Frame]]:
    """Yield the frames of a file, each with the bytes that were read up to its end.

    Raises:
        DamagedBackup: it is no backup, was cut off, or is damaged; the last frame has then not been yielded.
        OSError: it cannot be read.
    """
    digest, offset, keys = hashlib.blake2b(digest_size=32), 0, 0
    with path.open("rb") as file:
        while True:
            begin = file.read(_LENGTH.size)
            length = _LENGTH.unpack(begin)[0] if len(begin) == _LENGTH.size else 0
            data = file.read(length) if 0 < length <= _LARGEST else b""
            if len(data) != length or not length:
                raise DamagedBackup("it was cut off or damaged" if offset else "it is no backup of Roundhouse")
            try:
                frame = _decoder.decode(data)
            except msgspec.MsgspecError:
                raise DamagedBackup("it is damaged" if offset else "it is no backup of Roundhouse") from None
            if isinstance(frame, EndFrame) and (frame.digest != digest.digest() or frame.keys != keys):
                raise DamagedBackup("its digest does not fit: it is damaged")
            if (offset == 0) is not isinstance(frame, BackupHeader):
                raise DamagedBackup("it is no backup of Roundhouse")
            if isinstance(frame, BackupHeader) and frame.version != VERSION:
                raise DamagedBackup(f"its format is {frame.version}; this version of Roundhouse reads {VERSION}")
            digest.update(begin + data)
            offset += len(begin) + len(data)
            keys += isinstance(frame, KeyFrame)
            yield offset, frame
            if isinstance(frame, EndFrame):
                return
