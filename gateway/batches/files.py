"""Keeps tenants' files in Redis: sealed, in pieces, for a limited time and up to limits.

A file is one hash, so that it is there whole or not at all. It is seen once its description is there, which is written
last; what an upload that was cut off has left ends by itself soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from importlib import resources
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.config.batches import BatchSettings
from gateway.errors import Conflict, TooLarge
from gateway.storage.seal import BrokenSeal, Seal

log = logging.getLogger("roundhouse.batches")

FILE_KEY = "rh1:file:{{{tenant}}}:{id}"
FILE_BYTES_KEY = "rh1:file-bytes:{{{tenant}}}"
DESCRIPTION = "meta"
"""Field of a file's hash that describes it; the others are numbers of its pieces."""
PIECE = 131_072
"""Bytes of a piece of an uploaded file."""
AT_ONCE = 16
"""Pieces that are read at once."""
UPLOADING = 600
"""Seconds for which an upload may pause."""

Purpose = Literal["batch", "batch_output"]


class FileGone(Exception):
    """The file expired or was deleted while it was read, or Redis has dropped it to make room."""


class StoredFile(Struct, frozen=True, kw_only=True):
    """The description of a file."""

    id: str
    filename: str
    purpose: Purpose
    bytes: int
    created_at: int
    expires_at: int
    pieces: int
    """Highest number of a piece, plus one; numbers may be left out."""

    def shown(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


_decode = msgspec.msgpack.Decoder(StoredFile).decode


def file_key(tenant: str, id: str) -> str:
    return FILE_KEY.format(tenant=tenant, id=id)


def new_id(prefix: str) -> str:
    """Return an id that nobody can guess; later ones are greater."""
    return f"{prefix}{time.time_ns() // 1_000_000:011x}{secrets.token_hex(12)}"


class FileStore:
    """Writes, reads and deletes files. Methods raise RedisError and OSError where Redis does not answer."""

    def __init__(self, redis: Redis, seal: Seal, settings: BatchSettings) -> None:
        """Args: redis: a client with time enough for pieces of files."""
        self._redis = redis
        self._seal = seal
        self._settings = settings
        self._script = redis.register_script(resources.files("gateway.batches").joinpath("file.lua").read_text("utf-8"))

    def sealed(self, tenant: str, id: str, field: str | int, data: bytes) -> bytes:
        """Seal a field of a file's hash."""
        return self._seal.seal(data, f"{file_key(tenant, id)}:{field}")

    def described(self, tenant: str, file: StoredFile) -> bytes:
        """Return the description of a file, sealed."""
        return self.sealed(tenant, file.id, DESCRIPTION, msgspec.msgpack.encode(file))

    async def write(
        self, tenant: str, id: str, field: str | int, data: bytes, *, adds: int, seconds: int = UPLOADING
    ) -> None:
        """Write a field of a file's hash. Args: adds: bytes that it adds to the file; seconds: to live from now on.

        Raises:
            Conflict: the tenant has too many files or bytes.
        """
        await self._write(tenant, id, field, self.sealed(tenant, id, field, data), adds, seconds)

    async def check_room(self, tenant: str) -> None:
        """
        Raises:
            Conflict: the tenant has too many files or bytes for another file.
        """
        await self._write(tenant, "", "", b"", 1, 0)

    async def _write(self, tenant: str, id: str, field: str | int, sealed: bytes, adds: int, seconds: int) -> None:
        most = self._settings.max_files_per_tenant, self._settings.max_bytes_per_tenant
        keys, prefix = [file_key(tenant, id), FILE_BYTES_KEY.format(tenant=tenant)], file_key(tenant, "")
        args = (id, field, sealed, adds, 1000 * seconds, *most, prefix)
        exceeded = cast("bytes", await self._script(keys=keys, args=args)).decode()
        if exceeded:
            count = most[0] if exceeded == "files" else most[1]
            raise Conflict(f"this tenant's files may be {count} {exceeded} in all; delete some", code="too_many_files")

    async def get(self, tenant: str, id: str) -> StoredFile | None:
        """Read the description of a file."""
        sealed = await cast(Any, self._redis.hget(file_key(tenant, id), DESCRIPTION))
        try:
            return None if sealed is None else _decode(self._opened(tenant, id, DESCRIPTION, sealed))
        except FileGone:
            return None

    async def every(self, tenant: str) -> list[StoredFile]:
        """Return all files of a tenant, the newest first."""
        names = [id.decode() for id in await cast(Any, self._redis.hkeys(FILE_BYTES_KEY.format(tenant=tenant)))]
        found = await asyncio.gather(*(self.get(tenant, name) for name in names))
        return sorted((file for file in found if file), key=lambda file: (file.created_at, file.id), reverse=True)

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a file; return whether there was one."""
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hexists(file_key(tenant, id), DESCRIPTION)
            pipeline.unlink(file_key(tenant, id))
            pipeline.hdel(FILE_BYTES_KEY.format(tenant=tenant), id)
            there, _, _ = await pipeline.execute()
        return bool(there)

    async def content(self, tenant: str, file: StoredFile) -> AsyncGenerator[bytes, None]:
        """Yield the content piece by piece.

        Raises:
            FileGone: it is not there, or not there any more, or somebody has changed it.
        """
        left = file.bytes
        for start in range(0, file.pieces, AT_ONCE):
            fields = [str(field) for field in range(start, min(start + AT_ONCE, file.pieces))]
            found = await cast(Any, self._redis.hmget(file_key(tenant, file.id), fields))
            for field, sealed in zip(fields, found, strict=True):
                if sealed is not None:
                    piece = self._opened(tenant, file.id, field, sealed)
                    left -= len(piece)
                    yield piece
        if left:
            raise FileGone

    def _opened(self, tenant: str, id: str, field: str, sealed: bytes) -> bytes:
        try:
            return self._seal.open(sealed, f"{file_key(tenant, id)}:{field}")
        except BrokenSeal:
            log.warning("a file cannot be read", extra={"file_id": id})
            raise FileGone from None


class FileUpload:
    """Takes a file as it comes. `finish` or `abandon` it."""

    def __init__(self, store: FileStore, tenant: str, settings: BatchSettings) -> None:
        self._store = store
        self._tenant = tenant
        self._settings = settings
        self._id = new_id("file-")
        self._bytes = 0
        self._pieces = 0
        self._line_ends = 0

    async def write(self, content: bytes) -> None:
        """Append to the file.

        Raises:
            TooLarge: it has too many bytes or lines.
            Conflict: the tenant has too many files or bytes.
        """
        settings = self._settings
        self._bytes += len(content)
        self._line_ends += content.count(b"\n")
        if self._bytes > settings.max_file_bytes:
            raise TooLarge(f"file: may have {settings.max_file_bytes} bytes; split it", param="file")
        if self._line_ends > settings.max_lines:
            raise TooLarge(f"file: may have {settings.max_lines} lines; split it", param="file")
        for start in range(0, len(content), PIECE):
            piece = content[start : start + PIECE]
            await self._store.write(self._tenant, self._id, self._pieces, piece, adds=len(piece))
            self._pieces += 1

    async def finish(self, filename: str, purpose: Purpose, seconds: int | None) -> StoredFile:
        """Complete the file, which is kept for so many seconds, or as configured.

        Raises:
            Conflict: the tenant has too many files.
        """
        seconds, now = seconds or self._settings.ttl, int(time.time())
        file = StoredFile(
            id=self._id,
            filename=filename,
            purpose=purpose,
            bytes=self._bytes,
            created_at=now,
            expires_at=now + seconds,
            pieces=self._pieces,
        )
        description = msgspec.msgpack.encode(file)
        await self._store.write(self._tenant, self._id, DESCRIPTION, description, adds=0, seconds=seconds)
        return file

    async def abandon(self) -> None:
        """Delete what has come. It would also end by itself."""
        with contextlib.suppress(RedisError, OSError):
            await self._store.delete(self._tenant, self._id)
