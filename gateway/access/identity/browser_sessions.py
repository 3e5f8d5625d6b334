"""Browser sessions: who has signed in, under a random id of 256 bits that the browser keeps in a cookie.

Redis holds the SHA-256 of the id, and sealed what the session is, so that a copy of Redis opens nothing. A session ends
when it is signed out, when it was not used for `identity.session_idle` seconds, `identity.session_lifetime` seconds
after the sign-in, and when the same person has signed in `MOST_OF_PERSON` times since. All gateways notice at once, as
each request looks into Redis; WebSockets are closed within a second, however the session has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.access.identity.principal import Principal
from gateway.background import Periodic
from gateway.config.identity import IdentitySettings
from gateway.errors import Unauthorized
from gateway.storage.connect import unavailable_without_redis
from gateway.storage.seal import BrokenSeal, Seal

SESSION_KEY = "rh1:session:{digest}"
PERSON_KEY = "rh1:session-person:{digest}"
INDEX_KEY = "rh1:sessions"

MOST_OF_PERSON: Final = 20
"""Most sessions of one person; the oldest ends when one more begins."""
LOOK: Final = 0.5
"""Seconds between two looks whether sessions with an open WebSocket have ended."""
_READ_AT_ONCE = 200

_decode = msgspec.msgpack.Decoder(Principal).decode


class BrowserSessions:
    """Begins, finds and ends sessions."""

    def __init__(
        self, redis: Redis, seal: Seal, settings: IdentitySettings, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._redis = redis
        self._seal = seal
        self._idle = settings.session_idle
        self._lifetime = settings.session_lifetime
        self._clock = clock
        self._open: defaultdict[str, set[Callable[[], None]]] = defaultdict(set)
        """What closes each WebSocket of a session."""
        self._looking = Periodic("sessions", self._look, LOOK)

    async def start(self) -> None:
        """Begin to close WebSockets whose session has ended."""
        await self._looking.start()

    async def aclose(self) -> None:
        """Stop closing them."""
        await self._looking.aclose()

    async def begin(self, principal: Principal) -> tuple[str, float]:
        """Begin a session; returns its id for the cookie, and the seconds that it may last.

        Raises:
            Unavailable: Redis does not answer.
        """
        id = secrets.token_urlsafe(32)
        digest, now = digest_of(id), self._clock()
        record = msgspec.structs.replace(principal, session=digest, expires_at=now + self._lifetime)
        sealed = self._seal.seal(msgspec.msgpack.encode(record), _context(digest))
        person = PERSON_KEY.format(digest=digest_of(f"{principal.tenant}\0{principal.key}\0{principal.user}"))
        with unavailable_without_redis("nobody can sign in"):
            await self._redis.set(_key(digest), sealed, ex=self._seconds(self._lifetime))
            await self._redis.zremrangebyscore(INDEX_KEY, "-inf", now - self._lifetime)
            await self._redis.zadd(INDEX_KEY, {digest: now})
            await self._redis.expire(INDEX_KEY, math.ceil(self._lifetime))
            await self._redis.zadd(person, {digest: now})
            await self._redis.expire(person, math.ceil(self._lifetime))
            for oldest in cast("list[bytes]", await self._redis.zrange(person, 0, -MOST_OF_PERSON - 1)):
                await self.end(oldest.decode())
                await self._redis.zrem(person, oldest)  # last: one that could not be ended is ended with the next one
        return id, self._lifetime

    async def find(self, digest: str) -> Principal:
        """Return who has signed in, by the digest of the session's id; the session counts as used.

        Raises:
            Unauthorized: there is no such session, or none any more.
            Unavailable: Redis does not answer.
        """
        with unavailable_without_redis("sessions cannot be checked"):
            principal = await self._read(digest)
            left = 0.0 if principal is None else (principal.expires_at or 0.0) - self._clock()
            if principal is None or left <= 0:
                raise Unauthorized("you are not signed in any more; sign in again", code="session_ended")
            await self._redis.expire(_key(digest), self._seconds(left))
        return principal

    async def read(self, digest: str) -> Principal | None:
        """Return who has signed in, without counting that as use; None: there is no such session.

        Raises:
            Unavailable: Redis does not answer.
        """
        with unavailable_without_redis("sessions cannot be read"):
            return await self._read(digest)

    async def newest(self) -> AsyncIterator[tuple[float, Principal]]:
        """Yield who has signed in, and the Unix time of that, newest first.

        Raises:
            Unavailable: Redis does not answer.
        """
        start = 0
        while page := await self._page(start):
            for began, principal in page:
                if principal is not None:
                    yield began, principal
            start += len(page)

    async def _page(self, start: int) -> list[tuple[float, Principal | None]]:
        """Read some sessions from a place in the index on; None stands for one that has ended."""
        with unavailable_without_redis("sessions cannot be listed"):
            end = start + _READ_AT_ONCE - 1
            found = cast(
                "list[tuple[bytes, float]]", await self._redis.zrange(INDEX_KEY, start, end, desc=True, withscores=True)
            )
            async with self._redis.pipeline(transaction=False) as pipeline:
                for digest, _ in found:
                    pipeline.get(_key(digest.decode()))
                sealed = await pipeline.execute()
        return [
            (began, self._opened(digest.decode(), each)) for (digest, began), each in zip(found, sealed, strict=True)
        ]

    async def end(self, digest: str) -> None:
        """End a session, by the digest of its id.

        Raises:
            Unavailable: Redis does not answer.
        """
        with unavailable_without_redis("nobody can sign out"):
            await self._redis.delete(_key(digest))
            await self._redis.zrem(INDEX_KEY, digest)

    @contextlib.contextmanager
    def watching(self, digest: str, close: Callable[[], None]) -> Iterator[None]:
        """Call `close` once the session has ended, while the body runs."""
        self._open[digest].add(close)
        try:
            yield
        finally:
            self._open[digest].discard(close)
            if not self._open[digest]:
                del self._open[digest]

    async def _read(self, digest: str) -> Principal | None:
        return self._opened(digest, cast("bytes | None", await self._redis.get(_key(digest))))

    def _opened(self, digest: str, sealed: bytes | None) -> Principal | None:
        if sealed is None:
            return None
        try:
            return _decode(self._seal.open(sealed, _context(digest)))
        except (BrokenSeal, msgspec.MsgspecError):
            return None

    def _seconds(self, left: float) -> int:
        """Seconds until a session ends that is used now. Args: left: those until it ends in any case."""
        return math.ceil(min(self._idle, left))

    async def _look(self) -> None:
        digests = list(self._open)
        try:
            alive = await asyncio.gather(*(self._redis.exists(_key(digest)) for digest in digests))
        except (RedisError, OSError):
            return  # who comes with the next turn is checked then
        for digest, there in zip(digests, alive, strict=True):
            if not there:
                for close in list(self._open.get(digest, ())):
                    close()


def digest_of(id: str) -> str:
    """SHA-256 of a session's id, by which it is found."""
    return hashlib.sha256(id.encode()).hexdigest()


def _key(digest: str) -> str:
    return SESSION_KEY.format(digest=digest)


def _context(digest: str) -> str:
    return f"session {digest}"
