"""Deletes the texts that a deleted tenant's people have written: another one of its name must not find them."""

from __future__ import annotations

from redis.asyncio import Redis

from gateway.storage.connect import unavailable_without_redis
from gateway.turns import comments, prompts

_KEYS = (prompts.KEY, comments.KEY, comments.INDEX_KEY)


async def forget_texts(redis: Redis, tenant: str) -> bool:
    """Delete a tenant's shared prompts and its users' comments, all at once; return whether there were any.

    Raises:
        Unavailable: Redis does not answer.
    """
    with unavailable_without_redis("prompts and comments cannot be reached"):
        return bool(await redis.unlink(*(key.format(tenant=tenant) for key in _KEYS)))
