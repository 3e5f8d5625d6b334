"""Records when API keys were last used: to the minute, written in the background.

A use costs one look into a dictionary. Once in a while all keys used since go to Redis in one pipeline; what is not
written because Redis is away is lost, as it is nothing that decides anything.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.background import Periodic
from gateway.storage.connect import unavailable_without_redis

LAST_USED_KEY = "rh1:last-used:{{{tenant}}}"
RESOLUTION = 60.0
"""Seconds between two stamps of one key."""
_FLUSH = 10.0
"""Seconds between two writes to Redis."""
_MOST = 20_000
"""Most keys of one tenant whose last use is kept; those used longest ago go first."""
_TTL = 400 * 86_400
"""Seconds for which last uses are kept."""


class LastUsed:
    """Records the last use of keys at this gateway."""

    def __init__(self, redis: Redis, *, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock
        self._stamped: dict[tuple[str, str], float] = {}
        self._waiting: dict[str, dict[str, int]] = {}
        """Last uses that Redis has not been told yet, by tenant and key."""
        self._writing = Periodic("last used", self.flush, _FLUSH, at_end=self.flush)

    def touch(self, tenant: str, key: str) -> None:
        """Note that a key is used now."""
        now = self._clock()
        # A clock that was set back does not stop the stamps.
        if abs(now - self._stamped.get((tenant, key), 0.0)) < RESOLUTION:
            return
        self._stamped[tenant, key] = now
        self._waiting.setdefault(tenant, {})[key] = int(now)

    async def flush(self) -> None:
        """Write what is waiting."""
        now = self._clock()
        self._stamped = {each: at for each, at in self._stamped.items() if abs(now - at) < RESOLUTION}
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        with contextlib.suppress(RedisError, OSError):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for tenant, keys in waiting.items():
                    name = LAST_USED_KEY.format(tenant=tenant)
                    pipeline.zadd(name, keys, gt=True)
                    pipeline.zremrangebyrank(name, 0, -_MOST - 1)
                    pipeline.expire(name, _TTL)
                await pipeline.execute()

    async def start(self) -> None:
        """Start writing in the background."""
        await self._writing.start()

    async def aclose(self) -> None:
        """Write what is waiting and stop."""
        await self._writing.aclose()


async def last_used(redis: Redis, tenant: str, keys: Sequence[str]) -> dict[str, int]:
    """Read when these keys of a tenant were last used (seconds since 1970); those that never were are missing.

    Raises:
        Unavailable: Redis does not answer.
    """
    if not keys:
        return {}
    with unavailable_without_redis("the last use of keys cannot be read"):
        scores = await cast(Any, redis.zmscore(LAST_USED_KEY.format(tenant=tenant), list(keys)))
    return {key: int(score) for key, score in zip(keys, scores, strict=True) if score is not None}
