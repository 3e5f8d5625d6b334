"""Gives back what gateways held of limits that have died, but for money, long before their leases end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

RELEASED_KEY = "rh1:limit-released:{id}"
GRACE = 2.0
"""Seconds from a gateway's death until what it held is given back: until then others charge, from its journal, what its
turns have used, so that nobody is given that meanwhile."""
_ONCE = 60
"""Seconds for which it is known that somebody gives it back; by then the leases have ended."""
_BATCH = 200


class DeadGateways:
    """Ends the leases of gateways that have died. All gateways notice a death, and one of them does this."""

    def __init__(self, redis: Redis, clock: Callable[[], float]) -> None:
        self._redis = redis
        self._clock = clock
        self._due: dict[str, float] = {}
        """Times at which leases are to end, by the id of the gateway that held them."""

    def died(self, gateway: str) -> None:
        """Have the leases of a gateway end soon."""
        self._due[gateway] = self._clock() + GRACE

    async def release(
        self, tenants: Callable[[], Awaitable[Iterable[str]]], end: Callable[[str, str], Awaitable[Any]]
    ) -> None:
        """End the leases that are due. Those that Redis has no answer for end by themselves.

        Args:
            tenants: returns those that have used limits lately.
            end: ends the leases of a tenant whose ids have a part in them.
        """
        for gateway in [gateway for gateway, due in self._due.items() if due <= self._clock()]:
            del self._due[gateway]
            with contextlib.suppress(RedisError, OSError):
                if await self._redis.set(RELEASED_KEY.format(id=gateway), 1, nx=True, ex=_ONCE):
                    part = gateway.removeprefix("gw_")
                    waiting = list(await tenants())
                    for start in range(0, len(waiting), _BATCH):
                        await asyncio.gather(*(end(tenant, part) for tenant in waiting[start : start + _BATCH]))
