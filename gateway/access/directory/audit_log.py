"""The audit log in Redis: reading, following and verifying it. `gateway.access.directory.store` writes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Literal, cast

from msgspec import Raw
from redis.asyncio import Redis

from gateway.access.directory.audit import START, ChainBreak, ChainPosition, SealedAuditRecord, Verifier, is_lost
from gateway.access.directory.schema import AUDIT_KEY, CHECKPOINT_KEY, HEAD_KEY
from gateway.errors import Unavailable
from gateway.storage.connect import unavailable_without_redis

_PAGE = 500
_LAST = 2**64 - 1
"""Greatest second part of a stream's id."""
_FIELDS = ("sequence", "hash", "seal")


class LogSetBack(Unavailable):
    """Redis has lost entries that this process has seen: after a fail-over, or because an old copy was restored."""

    code = "directory_set_back"

    def __init__(self, newest: ChainPosition, head: ChainPosition) -> None:
        super().__init__(
            f"the directory in Redis is older than one seen here: its log ends at entry {head.sequence}, and "
            f"does not have entry {newest.sequence} with hash {newest.hash}. Nothing in it can be changed until an "
            "operator has restored the newer one, or accepts the loss by restarting the gateways"
        )


directory_needed = partial(unavailable_without_redis, "the directory cannot be reached")
"""Refuses what the body does if Redis does not answer."""


class AuditLog:
    """Reads audit records by their numbers, which go up by one. All methods raise Unavailable if Redis does not
    answer."""

    def __init__(self, redis: Redis, *, secret: bytes = b"") -> None:
        self._redis = redis
        self._secret = secret
        self.newest = START
        """The newest entry that this process has seen."""

    def saw(self, head: ChainPosition) -> None:
        """Remember an entry that was seen, or written."""
        if head.sequence > self.newest.sequence:
            self.newest = head

    async def head(self) -> ChainPosition:
        """Return the position of the last record, which is remembered.

        Raises:
            LogSetBack: records are gone that were there.
        """
        newest = self.newest  # what is written meanwhile may be missed below
        head = await self._mark(HEAD_KEY)
        if head.hash != newest.hash and newest != START:
            with directory_needed():
                async with self._redis.pipeline(transaction=True) as pipeline:
                    pipeline.hmget(CHECKPOINT_KEY, *_FIELDS)
                    pipeline.xrange(AUDIT_KEY, *range_of(newest))
                    checkpoint, found = await pipeline.execute()
            if is_lost(newest, mark_of(checkpoint), hash_in(found)):
                raise LogSetBack(newest, head)
        self.saw(head)
        return head

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


def range_of(entry: ChainPosition) -> tuple[str, str]:
    """Return the first and the last id in the stream that the record of this number may have."""
    return f"{entry.sequence}-0", f"{entry.sequence}-{_LAST}"


def hash_in(reply: Sequence[Any]) -> str | None:
    """Return the hash of the first record in a reply of XRANGE, if there is one."""
    if not reply:
        return None
    _, fields = reply[0]
    found = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
    return cast(bytes, found.get(b"hash", b"")).decode()


def mark_of(reply: Sequence[bytes | None]) -> ChainPosition:
    """Return the position in a reply of HMGET; the start if there is none."""
    sequence, digest, seal = (value.decode() if value is not None else "" for value in reply)
    return ChainPosition(int(sequence), digest, seal) if sequence else START


def _logged(fields: dict[bytes, bytes]) -> SealedAuditRecord:
    entry, digest, seal = (fields.get(name, b"") for name in (b"entry", b"hash", b"seal"))
    return SealedAuditRecord(Raw(entry), digest.decode(), seal.decode())
