"""The audit log in Redis: reading, following and verifying it. `gateway.access.directory.store` writes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Literal, cast

from msgspec import Raw
from redis.asyncio import Redis

from gateway.access.directory.audit import START, ChainBreak, ChainPosition, SealedAuditRecord, Verifier
from gateway.access.directory.schema import AUDIT_KEY, CHECKPOINT_KEY, HEAD_KEY
from gateway.storage.connect import unavailable_without_redis

_PAGE = 500
_LAST = 2**64 - 1
"""Greatest second part of a stream's id."""
_FIELDS = ("sequence", "hash", "seal")

directory_needed = partial(unavailable_without_redis, "the directory cannot be reached")
"""Refuses what the body does if Redis does not answer."""


class AuditLog:
    """Reads audit records by their numbers, which go up by one. All methods raise Unavailable if Redis does not
    answer."""

    def __init__(self, redis: Redis, *, secret: bytes = b"") -> None:
        self._redis = redis
        self._secret = secret

    async def head(self) -> ChainPosition:
        """Return the position of the last record."""
        return await self._mark(HEAD_KEY)

    async def checkpoint(self) -> ChainPosition:
        """Return the position before the first record that is still there."""
        return await self._mark(CHECKPOINT_KEY)

    async def read(self, after: int = 0, limit: int = 100) -> list[SealedAuditRecord]:
        """Return the records after this number, oldest first."""
        return [logged for _, logged in await self._range("XRANGE", f"{after + 1}-0", "+", limit)]

    async def read_back(self, before: int | None = None, limit: int = 100) -> list[SealedAuditRecord]:
        """Return the records before this number, newest first."""
        last = "+" if before is None else f"({before}-0"
        return [logged for _, logged in await self._range("XREVRANGE", last, "-", limit)]

    async def entries(self, after: int = 0, until: int | None = None) -> AsyncIterator[SealedAuditRecord]:
        """Yield all records after this number and up to that one, oldest first, read page by page."""
        last = "+" if until is None else f"{until}-{_LAST}"
        first = f"{after + 1}-0"
        while page := await self._range("XRANGE", first, last, _PAGE):
            for _, logged in page:
                yield logged
            first = f"({page[-1][0]}"

    async def verify(self, *, expect: ChainPosition | None = None) -> tuple[Verifier, ChainBreak | None]:
        """Verify the whole log as it is now; records added meanwhile are not looked at.

        `expect`: an entry that was seen earlier, and must be there unless the cap has dropped it.
        """
        while True:
            checkpoint, head, last = await self._extent()
            verifier = Verifier(checkpoint, self._secret, expect=expect)
            if verifier.begin() is None:
                async for logged in self.entries(until=last):
                    if verifier.feed(logged) is not None:
                        break
            if (problem := verifier.finish(head)) is None or await self.checkpoint() == checkpoint:
                return verifier, problem
            # The log has been cut at its start while it was read.

    async def _extent(self) -> tuple[ChainPosition, ChainPosition, int]:
        """Read the checkpoint, the head, and the number of the last record, at one moment."""
        with directory_needed():
            async with self._redis.pipeline(transaction=True) as pipeline:
                for key in (CHECKPOINT_KEY, HEAD_KEY):
                    pipeline.hmget(key, *_FIELDS)
                pipeline.xrevrange(AUDIT_KEY, count=1)
                checkpoint, head, newest = await pipeline.execute()
        return mark_of(checkpoint), mark_of(head), int(newest[0][0].split(b"-")[0]) if newest else 0

    async def _mark(self, key: str) -> ChainPosition:
        with directory_needed():
            return mark_of(await cast(Any, self._redis.hmget(key, *_FIELDS)))

    async def _range(
        self, command: Literal["XRANGE", "XREVRANGE"], first: str, last: str, limit: int
    ) -> list[tuple[str, SealedAuditRecord]]:
        read = self._redis.xrange if command == "XRANGE" else self._redis.xrevrange
        with directory_needed():
            found = cast("list[tuple[bytes, dict[bytes, bytes]]]", await read(AUDIT_KEY, first, last, count=limit))
        return [(place.decode(), _logged(fields)) for place, fields in found]


def mark_of(reply: Sequence[bytes | None]) -> ChainPosition:
    """Return the position in a reply of HMGET; the start if there is none."""
    sequence, digest, seal = (value.decode() if value is not None else "" for value in reply)
    return ChainPosition(int(sequence), digest, seal) if sequence else START


def _logged(fields: dict[bytes, bytes]) -> SealedAuditRecord:
    entry, digest, seal = (fields.get(name, b"") for name in (b"entry", b"hash", b"seal"))
    return SealedAuditRecord(Raw(entry), digest.decode(), seal.decode())
