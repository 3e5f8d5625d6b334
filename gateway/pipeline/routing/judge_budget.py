"""What all gateways together may spend on a judge in a day."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import cast

from redis.asyncio import Redis

KEY = "rh1:judge-spent:{day}"
LIFETIME = 2 * 86_400


class DailyBudget:
    """Counts picodollars in Redis: the most that work may cost before it begins, what it did cost afterwards."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def reserve(self, most: int, limit: int) -> str | None:
        """Reserve the most that work may cost; return the day whose budget it is, or None if that has not enough left.

        Raises:
            RedisError, OSError: Redis does not answer.
        """
        day = datetime.fromtimestamp(time.time(), UTC).strftime("%Y%m%d")
        if await self._add(day, most) > limit:
            await self._add(day, -most)
            return None
        return day

    async def settle(self, day: str, most: int, spent: int) -> None:
        """Count what the work has cost in the place of what was reserved for it. Raises as `reserve`."""
        await self._add(day, spent - most)

    async def _add(self, day: str, amount: int) -> int:
        key = KEY.format(day=day)
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.incrby(key, amount)
            pipeline.expire(key, LIFETIME)
            return cast("int", (await pipeline.execute())[0])
