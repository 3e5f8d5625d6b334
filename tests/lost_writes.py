"""What a fail-over to a replica does to Redis: its last writes have never been."""

from __future__ import annotations

from redis.asyncio import Redis

State = dict[bytes, tuple[int, bytes]]


async def remember(redis: Redis) -> State:
    """All keys as they are now: what the replica has."""
    found: State = {}
    async for key in redis.scan_iter():
        found[key] = (max(0, await redis.pttl(key)), await redis.dump(key))
    return found


async def lose_since(redis: Redis, state: State) -> None:
    """Lose every write since `state` was remembered."""
    await redis.flushall()
    for key, (ttl, value) in state.items():
        await redis.restore(key, ttl, value)
