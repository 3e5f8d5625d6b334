"""Knows which tenants use limits, and deletes the limits of those that have not been used for long.

Limits have no time to live of Redis' own: it would drop them to make room, and a tenant's budget with them.
"""

from __future__ import annotations

import time
from importlib import resources
from typing import cast

from redis.asyncio import Redis

from gateway.limits.script import keys

TENANTS_KEY = "rh1:limit-tenants"
KEEP = 35 * 86_400.0
"""Seconds for which limits are kept after a tenant's last use: longer than a month, whose spend counts."""
_AGAIN = 3600.0
"""Seconds after which the same tenant is noted again, and idle ones are looked for."""
_BATCH = 100
_LATELY = 86_400.0
"""Seconds: somebody whose limits were used within them may have turns that run."""


class IdleLimits:
    """Notes which tenants use limits, and deletes the limits of others."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._delete = redis.register_script(resources.files("gateway.limits").joinpath("idle.lua").read_text("utf-8"))
        self._new: set[str] = set()
        self._noted: set[str] = set()
        self._looked = float("-inf")

    def used(self, tenant: str) -> None:
        """Note that a tenant's limits are used."""
        if tenant not in self._noted:
            self._new.add(tenant)

    async def lately(self) -> list[str]:
        """Return the tenants whose limits were used within a day.

        Raises:
            RedisError, OSError: Redis does not answer.
        """
        found = cast("list[bytes]", await self._redis.zrangebyscore(TENANTS_KEY, time.time() - _LATELY, "+inf"))
        return [name.decode() for name in found]

    async def sweep(self, now: float | None = None) -> None:
        """Write newly used tenants to Redis; now and then delete old ones. `now`: seconds since 1970.

        Raises:
            RedisError, OSError: Redis does not answer; nothing is forgotten.
        """
        now = time.time() if now is None else now
        if self._new:
            noted = frozenset(self._new)
            await self._redis.zadd(TENANTS_KEY, dict.fromkeys(noted, now))
            self._noted |= noted
            self._new -= noted
        if now - self._looked < _AGAIN:
            return
        idle = cast("list[bytes]", await self._redis.zrangebyscore(TENANTS_KEY, "-inf", now - KEEP, 0, _BATCH))
        for tenant in idle:
            name = tenant.decode()
            if await self._delete(keys=keys(name), args=[int(1000 * KEEP)]):
                await self._redis.zrem(TENANTS_KEY, name)
            else:
                self._new.add(name)
        self._looked = now
        self._noted.clear()
