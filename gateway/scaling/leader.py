"""Which of several controllers decides: the one that holds a lease in Redis, under a number that only grows.

A controller that was halted for longer than its lease may still believe that it leads. So everything that it writes
carries the number of its lease, and what carries an older one than the last is refused (`records`). The number is the
time of the take-over in milliseconds, or one more than the last if that is not later: it also grows where Redis has
lost the last one.
"""

from __future__ import annotations

import logging
import secrets
from time import monotonic

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.background import Periodic

log = logging.getLogger("roundhouse.scaling")

LEADER_KEY = "rh1:pool-leader"
RENEWALS = 4
"""Renewals within the length of a lease."""

_HOLD = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', KEYS[1], 'id', 'fence', 'until')
local fence, left = tonumber(held[2] or 0), tonumber(held[3] or 0) - now
if held[1] ~= ARGV[1] then
  -- One that lasts for much longer is from before Redis' clock was set back.
  if left > 0 and left <= 2 * ARGV[2] then return false end
  fence = math.max(fence + 1, now)
end
fence = string.format('%d', fence)
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'fence', fence, 'until', string.format('%d', now + ARGV[2]))
return fence
"""
"""Takes or renews the lease. KEYS: leader. ARGV: controller, length (ms). Returns the number, or nil: another one
leads."""
_RELEASE = """
if redis.call('HGET', KEYS[1], 'id') == ARGV[1] then redis.call('HSET', KEYS[1], 'until', 0) end
"""


class Leadership:
    """The lease of one controller."""

    def __init__(self, redis: Redis, seconds: float) -> None:
        """Args: seconds: length of the lease."""
        self.id = secrets.token_hex(4)
        """Name of this controller."""
        self._redis = redis
        self._seconds = seconds
        self._fence: int | None = None
        self._until = 0.0
        self._hold = redis.register_script(_HOLD)
        self._release = redis.register_script(_RELEASE)
        self._renewing = Periodic("pool leader", self.renew, seconds / RENEWALS, at_end=self._withdraw)

    async def start(self) -> None:
        """Try to lead from now on; returns at once."""
        await self._renewing.start()

    async def aclose(self) -> None:
        """End the lease, so that another controller takes over at once."""
        await self._renewing.aclose()

    @property
    def fence(self) -> int | None:
        """Number of the lease while this controller leads, else None."""
        return self._fence if monotonic() < self._until else None

    async def renew(self) -> None:
        """Take the lease, or hold it for longer; without Redis it ends in its time."""
        began, before = monotonic(), self.fence
        try:
            answer = await self._hold(keys=[LEADER_KEY], args=[self.id, int(1000 * self._seconds)])
        except (RedisError, OSError) as error:
            log.debug("pool leader's lease not renewed", extra={"error": type(error).__name__})
            return
        self._fence = None if answer is None else int(answer)
        self._until = began + self._seconds
        if self._fence != before:
            led = "leads" if self._fence is not None else "does not lead any more"
            log.info(f"this controller {led}", extra={"controller": self.id, "fence": self._fence})

    def lose(self) -> None:
        """Stop to lead: another controller has a newer number. The next renewal may win it back."""
        self._until = 0.0

    async def _withdraw(self) -> None:
        self.lose()
        try:
            await self._release(keys=[LEADER_KEY], args=[self.id])
        except (RedisError, OSError) as error:  # it ends by itself
            log.debug("pool leader's lease not ended", extra={"error": type(error).__name__})
