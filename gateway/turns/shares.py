"""Keeps conversations that their owners share. They come encrypted, with a key that no server ever gets: it is a part
of the address that browsers do not send.

What is known of one outlives it, so that readers are told what has become of it.
"""

from __future__ import annotations

import secrets
import time
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from gateway.errors import Conflict, Gone, NotFound
from gateway.protocol.shares import LONGEST, SharedConversation, ShareEntry
from gateway.storage.connect import unavailable_without_redis
from gateway.turns.chats import Owner

SHARE_KEY = "rh1:share:{{{id}}}"
DATA_KEY = "rh1:share-data:{{{id}}}"
INDEX_KEY = "rh1:share-index:{{{tenant}}}:{owner}"

MAX_SHARES = 100
"""Most conversations that one owner shares at a time."""
MAX_SHARED_BYTES = 16 * 1024 * 1024
"""Most bytes of all of them."""

_ADD = """
local count, sum = 0, tonumber(ARGV[4])
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  local expires, bytes = string.match(known[i + 1], '^%d+ (%d+) (%d+)$')
  if tonumber(expires) <= tonumber(ARGV[2]) then
    redis.call('HDEL', KEYS[1], known[i])
  else
    count, sum = count + 1, sum + tonumber(bytes)
  end
end
if count >= tonumber(ARGV[5]) or sum > tonumber(ARGV[6]) then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
redis.call('EXPIRE', KEYS[1], math.max(ARGV[3] - ARGV[2], redis.call('TTL', KEYS[1])))
return 1
"""
"""KEYS: the owner's index (id -> when it was made and expires, bytes). ARGV: id, now (s), when it expires (s), bytes,
most conversations, most bytes. Returns 0 if there is no room."""

_redis_needed = partial(unavailable_without_redis, "shared conversations cannot be reached")


class _About(Struct, array_like=True):
    """What is known of a shared conversation."""

    tenant: str
    expires_at: int
    revoked: bool = False


class Shares:
    """Adds, reads and revokes shared conversations. All methods raise `Unavailable` if Redis does not answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._add = redis.register_script(_ADD)

    async def create(self, owner: Owner, ciphertext: bytes, seconds: int) -> ShareEntry:
        """Share a conversation for so many seconds.

        Raises:
            Conflict: the owner shares too much already.
        """
        id, now, size = secrets.token_urlsafe(16), int(time.time()), len(ciphertext)
        expires = now + seconds
        with _redis_needed():
            args = (id, now, expires, size, MAX_SHARES, MAX_SHARED_BYTES)
            if not await self._add(keys=[_index(owner)], args=args):
                raise Conflict(
                    f"{MAX_SHARES} conversations, or {MAX_SHARED_BYTES >> 20} MiB, are shared already; revoke some",
                    code="too_many_shares",
                )
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.set(DATA_KEY.format(id=id), ciphertext, exat=expires)
                about = msgspec.msgpack.encode(_About(owner.tenant, expires))
                pipeline.set(SHARE_KEY.format(id=id), about, exat=expires + LONGEST)
                await pipeline.execute()
        return ShareEntry(id, now, expires, size)

    async def shared_by(self, owner: Owner) -> list[ShareEntry]:
        """Return what an owner shares, the newest first."""
        with _redis_needed():
            found = cast("dict[bytes, bytes]", await cast(Any, self._redis.hgetall(_index(owner))))
        shares, now = [], time.time()
        for id, value in found.items():
            made, expires, size = map(int, value.split())
            if expires > now:
                shares.append(ShareEntry(id.decode(), made, expires, size))
        return sorted(shares, key=lambda share: share.created_at, reverse=True)

    async def read(self, id: str, tenant: str | None) -> tuple[str, SharedConversation]:
        """Read a shared conversation; return its tenant too.

        Args:
            tenant: the reader's; None: it does not matter.

        Raises:
            NotFound: there is none, or it is another tenant's.
            Gone: it has expired, or was revoked.
        """
        with _redis_needed():
            async with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.get(SHARE_KEY.format(id=id))
                pipeline.get(DATA_KEY.format(id=id))
                known, ciphertext = await pipeline.execute()
        about = None if known is None else msgspec.msgpack.decode(known, type=_About)
        if about is None or tenant not in (None, about.tenant):
            raise _unknown(id)
        if about.revoked:
            raise Gone("share_id: whoever shared this conversation has revoked it", code="share_revoked")
        if ciphertext is None:
            raise Gone("share_id: this shared conversation has expired")
        return about.tenant, SharedConversation(id, about.expires_at, ciphertext)

    async def revoke(self, owner: Owner, id: str) -> None:
        """Let nobody read a conversation any more.

        Raises:
            NotFound: the owner does not share it.
        """
        with _redis_needed():
            if not await self._redis.hexists(_index(owner), id):
                raise _unknown(id)
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.unlink(DATA_KEY.format(id=id))
                about = msgspec.msgpack.encode(_About(owner.tenant, 0, revoked=True))
                pipeline.set(SHARE_KEY.format(id=id), about, xx=True, keepttl=True)
                await pipeline.execute()
            # Last, so that a revocation that fails can be repeated.
            await cast(Any, self._redis.hdel(_index(owner), id))


def _index(owner: Owner) -> str:
    return INDEX_KEY.format(tenant=owner.tenant, owner=owner.digest)


def _unknown(id: str) -> NotFound:
    return NotFound(
        f"share_id: no shared conversation {id[:80]!r}; it is unknown, or was shared long ago",
        param="share_id",
        code="share_not_found",
    )
