"""Tells in Redis which sleeping pools are wanted, for whoever starts engines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Iterator

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.background import BackgroundTasks, Periodic

log = logging.getLogger("roundhouse.engines")

WANTED_KEY = "rh1:pool-wanted:{pool}"
LIFETIME = 30.0
"""Seconds for which a turn counts after it was last written."""
RENEWAL_SECONDS = 10.0


class WantedPools:
    """The turns of this gateway that want an engine of a sleeping pool."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: defaultdict[str, set[str]] = defaultdict(set)
        """Ids of the turns that wait, by pool."""
        self._writing = BackgroundTasks("wanted pools")
        self._renewing = Periodic("wanted pools", self._renew, RENEWAL_SECONDS)

    async def start(self) -> None:
        await self._renewing.start()

    async def aclose(self) -> None:
        await self._renewing.aclose()
        await self._writing.aclose(1.0)

    def waiting(self, pool: str) -> int:
        """Number of turns that wait for a pool."""
        return len(self._waiting[pool])

    @contextlib.contextmanager
    def wait(self, pool: str, turn: str) -> Iterator[None]:
        """Count a turn that waits for a pool while the body runs."""
        self._waiting[pool].add(turn)
        self._writing.begin(self._write(pool, [turn]))
        try:
            yield
        finally:
            self._waiting[pool].discard(turn)
            self._writing.begin(self._forget(pool, turn))

    def missed(self, pool: str, turn: str) -> None:
        """Count a turn that another tier answers because the pool sleeps."""
        self._writing.begin(self._write(pool, [turn]))

    async def _renew(self) -> None:
        await asyncio.gather(*(self._write(pool, list(turns)) for pool, turns in self._waiting.items() if turns))

    async def _write(self, pool: str, turns: list[str]) -> None:
        key, now = WANTED_KEY.format(pool=pool), time.time()
        with self._unless_away():
            await asyncio.gather(
                self._redis.zadd(key, dict.fromkeys(turns, now)),
                self._redis.zremrangebyscore(key, "-inf", now - LIFETIME),
                self._redis.expire(key, int(LIFETIME)),
            )

    async def _forget(self, pool: str, turn: str) -> None:
        with self._unless_away():
            await self._redis.zrem(WANTED_KEY.format(pool=pool), turn)

    @contextlib.contextmanager
    def _unless_away(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            log.warning("wanted pools not written", extra={"error": type(error).__name__})
