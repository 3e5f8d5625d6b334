"""Idempotent create: the same key with the same body is the same turn or batch, from whichever gateway it is asked for.

A key belongs to the caller that sent it. Redis keeps a digest of the key and a keyed digest of the body; without Redis
a key works within one gateway. What is kept ends with what was created: a key whose response is no longer kept starts
anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections import OrderedDict
from typing import cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.access.identity import Principal
from gateway.errors import Conflict, InvalidRequest

log = logging.getLogger("roundhouse.turns")

CLAIM_KEY = "rh1:turn-once:{{{tenant}}}:{digest}"
MAX_KEY = 255
"""Longest idempotency key in characters."""
MAX_LOCAL = 10_000

# Redis before 7.0 refuses SET with both NX and GET.
_CLAIM = """
local held = redis.call('GET', KEYS[1])
if held then return held end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
"""
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class Claim(Struct, frozen=True):
    """One caller's idempotency key, and what was asked with it."""

    name: str
    """Key of the claim in Redis."""
    body: str
    """Keyed digest of the request."""


class Creations:
    """Remembers what each idempotency key created."""

    def __init__(self, redis: Redis, secret: bytes, ttl: float, redis_key: str = CLAIM_KEY) -> None:
        """Args: ttl: seconds that a key is remembered; redis_key: template of the keys in Redis."""
        self._redis_key = redis_key
        self._claim = redis.register_script(_CLAIM)
        self._release = redis.register_script(_RELEASE)
        self._secret = secret[:64]
        self._ttl = int(1000 * ttl)
        self._local: OrderedDict[str, str] = OrderedDict()
        """Claims that this gateway knows, for when Redis does not answer."""

    def claim(self, principal: Principal, key: str, request: object) -> Claim:
        """Make the claim of an idempotency key.

        Raises:
            InvalidRequest: the key is empty, too long, or holds control characters.
        """
        if not 0 < len(key) <= MAX_KEY or not key.isprintable():
            raise InvalidRequest(
                f"idempotency_key: expected 1 to {MAX_KEY} printable characters", param="idempotency_key"
            )
        whose = msgspec.msgpack.encode([principal.key, principal.user, key])
        digest = hashlib.blake2b(whose, digest_size=16, key=self._secret).hexdigest()
        body = msgspec.msgpack.encode(request, order="deterministic")
        return Claim(
            self._redis_key.format(tenant=principal.tenant, digest=digest),
            hashlib.blake2b(body, digest_size=16, key=self._secret).hexdigest(),
        )

    async def take(self, claim: Claim, id: str) -> str | None:
        """Bind the key to `id`; return another id if the key is bound to that already.

        Raises:
            Conflict: it was used with another body.
        """
        mine = f"{claim.body} {id}"
        held = self._local.get(claim.name)
        if held is None:
            try:
                found = cast("bytes | None", await self._claim(keys=[claim.name], args=[mine, self._ttl]))
                held = found.decode() if found else None
            except (RedisError, OSError) as error:
                log.warning("idempotency keys hold within this gateway only", extra={"error": type(error).__name__})
            # Nothing awaits between here and the end: of two at the same time, the second sees what the first took.
            held = held or self._local.get(claim.name)
        self._local[claim.name] = held or mine
        self._local.move_to_end(claim.name)
        if len(self._local) > MAX_LOCAL:
            self._local.popitem(last=False)
        if held is None:
            return None
        body, existing = held.split(" ")
        if body != claim.body:
            raise Conflict(
                "idempotency_key: this key was used for another request; use a new one",
                param="idempotency_key",
                code="idempotency_key_reused",
            )
        return existing

    async def release(self, claim: Claim, id: str) -> None:
        """Forget the key if it is bound to `id`, which was refused or is no longer kept."""
        mine = f"{claim.body} {id}"
        if self._local.get(claim.name) == mine:
            del self._local[claim.name]
        with contextlib.suppress(RedisError, OSError):  # it ends by itself too
            await self._release(keys=[claim.name], args=[mine])
