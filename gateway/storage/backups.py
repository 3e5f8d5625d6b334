"""When this Redis was last backed up, for the metric that an alert watches."""

from __future__ import annotations

from redis.asyncio import Redis

BACKUP_KEY = "rh1:backup"


async def note_backup(redis: Redis, at: int) -> None:
    """Write down that a whole backup exists. Args: at: when it began, in seconds since 1970."""
    await redis.set(BACKUP_KEY, at)


async def last_backup(redis: Redis) -> int:
    """Return when the last whole backup began, in seconds since 1970; 0 if none is known.

    Raises:
        RedisError, OSError: Redis does not answer.
    """
    at = await redis.get(BACKUP_KEY)
    return int(at or 0)
