"""Keeps the prompts that tenants share with their users in Redis: sealed, within limits.

A tenant's prompts are one hash, so that a script can change one of them only to the revision that its writer has read.
They have no time to live: people wrote them, and nobody could compute them again.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from gateway.errors import Conflict, NotFound, PreconditionFailed
from gateway.protocol.prompts import PromptObject, PromptWrite
from gateway.storage.connect import unavailable_without_redis
from gateway.storage.seal import BrokenSeal, Seal

log = logging.getLogger("roundhouse.turns")

KEY = "rh1:prompts:{{{tenant}}}"

MAX_PROMPTS = 200
"""Most prompts of a tenant."""
_REVISION = 16
"""Length of the revision before a sealed prompt."""

_WRITE = """
local old = redis.call('HGET', KEYS[1], ARGV[1])
local revision = tonumber(string.sub(old or '', 1, 16)) or 0
if not old and tonumber(ARGV[2]) > 0 then
  return {revision, 'unknown'}
end
if revision ~= tonumber(ARGV[2]) then
  return {revision, 'revision'}
end
if ARGV[5] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  return {revision, ''}
end
if not old and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
  return {revision, 'full'}
end
revision = math.max(revision + 1, tonumber(ARGV[3]))
redis.call('HSET', KEYS[1], ARGV[1], string.format('%016.0f', revision) .. ARGV[5])
return {revision, ''}
"""
"""KEYS: the tenant's prompts (id -> revision and sealed prompt). ARGV: id, revision that was read (0: there is none),
now (ms), most prompts, sealed prompt or '' for none. Returns the revision, and why nothing was written: 'unknown',
'revision' or 'full'."""

_redis_needed = partial(unavailable_without_redis, "prompts cannot be reached")


class _Prompt(Struct, array_like=True):
    name: str
    text: str


class Prompts:
    """Reads and changes prompts. All methods raise `Unavailable` if Redis does not answer."""

    def __init__(self, redis: Redis, secret: bytes) -> None:
        self._redis = redis
        self._seal = Seal(secret)
        self._write = redis.register_script(_WRITE)

    async def all_of(self, tenant: str) -> list[PromptObject]:
        """Return a tenant's prompts by name, without those that cannot be read."""
        prompts = []
        for id, value in (await sealed_prompts(self._redis, tenant)).items():
            with contextlib.suppress(NotFound):  # unreadable; it is in the log
                prompts.append(self._opened(tenant, id, value))
        return sorted(prompts, key=lambda prompt: (prompt.name.casefold(), prompt.id))

    async def read(self, tenant: str, id: str) -> PromptObject:
        """Read a prompt.

        Raises:
            NotFound: the tenant has none of this id.
        """
        with _redis_needed():
            value = await cast(Any, self._redis.hget(KEY.format(tenant=tenant), id))
        if value is None:
            raise _unknown(id)
        return self._opened(tenant, id, value)

    async def check(self, tenant: str, id: str) -> None:
        """
        Raises:
            NotFound: the tenant has none of this id, not even one that cannot be read.
        """
        with _redis_needed():
            if not await cast(Any, self._redis.hexists(KEY.format(tenant=tenant), id)):
                raise _unknown(id)

    async def create(self, tenant: str, id: str, given: PromptWrite) -> PromptObject:
        """Make a prompt.

        Raises:
            Conflict: the tenant has as many as it may.
        """
        return await self._written(tenant, id, 0, given)

    async def change(self, tenant: str, id: str, read: int, given: PromptWrite) -> PromptObject:
        """Change a prompt.

        Args:
            read: the revision that the writer has read.

        Raises:
            NotFound: there is none.
            PreconditionFailed: it has another revision.
        """
        return await self._written(tenant, id, read, given)

    async def delete(self, tenant: str, id: str, read: int) -> None:
        """Delete a prompt, also one that cannot be read. For the rest see `change`."""
        await self._replace(tenant, id, read, b"")

    async def _written(self, tenant: str, id: str, read: int, given: PromptWrite) -> PromptObject:
        packed = msgspec.msgpack.encode(_Prompt(given.name, given.text))
        revision = await self._replace(tenant, id, read, self._seal.seal(packed, _context(tenant, id)))
        return PromptObject(id, given.name, given.text, revision)

    async def _replace(self, tenant: str, id: str, read: int, sealed: bytes) -> int:
        args = (id, read, time.time_ns() // 1_000_000, MAX_PROMPTS, sealed)
        with _redis_needed():
            answer = await self._write(keys=[KEY.format(tenant=tenant)], args=args)
        revision, refused = cast(int, answer[0]), cast(bytes, answer[1]).decode()
        if refused == "full":
            raise Conflict(f"there are {MAX_PROMPTS} prompts already; delete some", code="too_many_prompts")
        if refused == "unknown":
            raise _unknown(id)
        if refused:
            raise PreconditionFailed(
                f'it has changed: its ETag is "{revision}" now; read it again, and repeat the change', param="If-Match"
            )
        return revision

    def _opened(self, tenant: str, id: str, value: bytes) -> PromptObject:
        try:
            packed = self._seal.open(value[_REVISION:], _context(tenant, id))
            prompt = msgspec.msgpack.decode(packed, type=_Prompt)
        except (BrokenSeal, msgspec.MsgspecError) as error:
            log.warning("a prompt cannot be read", extra={"error": type(error).__name__})
            raise _unknown(id) from None
        return PromptObject(id, prompt.name, prompt.text, int(value[:_REVISION]))


async def sealed_prompts(redis: Redis, tenant: str) -> dict[str, bytes]:
    """Return a tenant's prompts by id, as Redis holds them: whoever has the same secret can open them."""
    with _redis_needed():
        found: Mapping[bytes, bytes] = await cast(Any, redis.hgetall(KEY.format(tenant=tenant)))
    return {id.decode(): value for id, value in found.items()}


async def restore_prompts(redis: Redis, tenant: str, sealed: Mapping[str, bytes]) -> None:
    """Write prompts of a tenant as another Redis held them, but for those that are here."""
    with _redis_needed():
        async with redis.pipeline(transaction=False) as pipeline:
            for id, value in sealed.items():
                pipeline.hsetnx(KEY.format(tenant=tenant), id, value)
            await pipeline.execute()


def new_id() -> str:
    """A new id, such as `prompt_3f9c2a7b10d4e586`."""
    return f"prompt_{secrets.token_hex(8)}"


def _context(tenant: str, id: str) -> str:
    return f"{KEY.format(tenant=tenant)}:{id}"


def _unknown(id: str) -> NotFound:
    return NotFound(
        f"prompt_id: no prompt {id[:80]!r}; it is unknown or deleted", param="prompt_id", code="prompt_not_found"
    )
