"""Keeps in Redis what users write beside their rating of an answer: sealed, for the admins of their tenant.

A response has one comment, that of its last rating. Where a tenant has as many as it may, the oldest goes.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from gateway.storage.connect import unavailable_without_redis
from gateway.storage.seal import BrokenSeal, Seal

log = logging.getLogger("roundhouse.turns")

KEY = "rh1:comments:{{{tenant}}}"
INDEX_KEY = "rh1:comment-index:{{{tenant}}}"

MAX_COMMENTS = 1_000
"""Most comments of a tenant."""
LIFETIME = 35 * 86_400
"""Seconds for which a comment is kept."""

_WRITE = """
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[5])
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
local expired = redis.call('ZCOUNT', KEYS[2], '-inf', ARGV[2] - ARGV[3])
local surplus = redis.call('ZCARD', KEYS[2]) - ARGV[4]
for _ = 1, math.max(expired, surplus) do
  redis.call('HDEL', KEYS[1], redis.call('ZPOPMIN', KEYS[2])[1])
end
"""
"""KEYS: the tenant's comments (response -> sealed comment), and their order (response by time). ARGV: response, now
(ms), milliseconds for which a comment is kept, most comments, sealed comment or '' for none."""

_redis_needed = partial(unavailable_without_redis, "comments cannot be reached")


class Comment(Struct, frozen=True):
    """What somebody wrote beside a rating."""

    response: str
    at: int
    """Unix time in milliseconds."""
    rating: Literal["up", "down"]
    reason: str | None
    text: str


class Comments:
    """Reads and changes comments. All methods raise `Unavailable` if Redis does not answer."""

    def __init__(self, redis: Redis, secret: bytes) -> None:
        self._redis = redis
        self._seal = Seal(secret)
        self._write = redis.register_script(_WRITE)

    async def write(self, tenant: str, comment: Comment) -> None:
        """Keep a comment in the place of the one that its response has."""
        sealed = self._seal.seal(msgspec.msgpack.encode(comment), _context(tenant, comment.response))
        await self._replace(tenant, comment.response, comment.at, sealed)

    async def remove(self, tenant: str, response: str) -> None:
        """Delete the comment on a response, if there is one."""
        await self._replace(tenant, response, _now(), b"")

    async def find(self, tenant: str, response: str) -> Comment | None:
        """Return the comment on a response, if there is one that can be read."""
        with _redis_needed():
            sealed = await cast(Any, self._redis.hget(KEY.format(tenant=tenant), response))
        return None if sealed is None else self._opened(tenant, response, sealed)

    async def of_tenant(self, tenant: str) -> list[Comment]:
        """Return all comments of a tenant that can be read, the newest first."""
        with _redis_needed():
            found = await cast(Any, self._redis.hgetall(KEY.format(tenant=tenant)))
        comments = [self._opened(tenant, id.decode(), sealed) for id, sealed in found.items()]
        kept = [comment for comment in comments if comment is not None]
        return sorted(kept, key=lambda comment: (comment.at, comment.response), reverse=True)

    async def _replace(self, tenant: str, response: str, now: int, sealed: bytes) -> None:
        keys = [KEY.format(tenant=tenant), INDEX_KEY.format(tenant=tenant)]
        with _redis_needed():
            await self._write(keys=keys, args=(response, now, 1000 * LIFETIME, MAX_COMMENTS, sealed))

    def _opened(self, tenant: str, response: str, sealed: bytes) -> Comment | None:
        try:
            comment = msgspec.msgpack.decode(self._seal.open(sealed, _context(tenant, response)), type=Comment)
        except (BrokenSeal, msgspec.MsgspecError) as error:
            log.warning("a comment cannot be read", extra={"error": type(error).__name__})
            return None
        return comment if comment.at > _now() - 1000 * LIFETIME else None


def _context(tenant: str, response: str) -> str:
    return f"{KEY.format(tenant=tenant)}:{response}"


def _now() -> int:
    return time.time_ns() // 1_000_000
