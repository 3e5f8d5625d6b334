"""Reads every second which engines have announced themselves in Redis, and has the pools follow them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import NamedTuple, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine.registration import INDEX_KEY, LEASE_KEY, Lease, LeaseRefused, opened
from gateway.background import Periodic
from gateway.engines.pool import Pool
from gateway.engines.pools import Engines
from gateway.telemetry.metrics.engines import EngineMetrics

log = logging.getLogger("roundhouse.engines")

LOOK_SECONDS = 1.0
MOST_ENGINES = 1000
"""Most engines of a pool; those that were announced last count."""


class LeasedEngines:
    """Keeps the pools that registered engines may join up to date. Without Redis the last list holds."""

    def __init__(self, redis: Redis, key: bytes, engines: Engines, metrics: EngineMetrics) -> None:
        """Args: key: of the seals."""
        self._redis = redis
        self._key = key
        self._engines = engines
        self._metrics = metrics
        self._refused: dict[str, set[str]] = {}
        """Ids whose leases were refused at the last look, by pool."""
        self._looking = Periodic("engine leases", self.look, LOOK_SECONDS)

    async def start(self) -> None:
        """Start looking; returns at once."""
        await self._looking.start()

    async def aclose(self) -> None:
        await self._looking.aclose()

    async def look(self) -> None:
        """Read the leases of all pools once."""
        try:
            await asyncio.gather(*(self._look(pool) for pool in self._engines.pools if pool.registered))
        except (RedisError, OSError) as error:
            log.debug("leases not read", extra={"error": type(error).__name__})

    async def _look(self, pool: Pool) -> None:
        leases, refused = await read_leases(self._redis, self._key, pool.tier)
        self._engines.announced(pool, leases)
        for id in refused.keys() - self._refused.get(pool.tier, set()):  # each is told of once
            self._metrics.refused(refused[id].reason)
            log.error("lease refused", extra={"pool": pool.tier, "replica": id[:64], "error": str(refused[id])})
        self._refused[pool.tier] = set(refused)


class LeaseLook(NamedTuple):
    """What Redis holds of a pool's engines."""

    leases: list[Lease]
    """Those that engines of ours have written just now."""
    refused: dict[str, LeaseRefused]
    """Why others are not believed, by id."""
    ended: list[bytes]
    """Ids in the index whose lease has ended."""


async def read_leases(redis: Redis, key: bytes, pool: str) -> tuple[list[Lease], dict[str, LeaseRefused]]:
    """Return the leases that engines of ours have written just now, and why others are not believed, by id.

    Those that have ended are taken out of the index.

    Raises:
        RedisError, OSError: Redis does not answer.
    """
    look = await look_up(redis, key, pool)
    if look.ended:
        await redis.zrem(INDEX_KEY.format(pool=pool), *look.ended)
    return look.leases, look.refused


async def look_up(redis: Redis, key: bytes, pool: str) -> LeaseLook:
    """Read the leases of a pool's engines, and change nothing.

    Raises:
        RedisError, OSError: Redis does not answer.
    """
    members = cast("list[bytes]", await redis.zrevrange(INDEX_KEY.format(pool=pool), 0, MOST_ENGINES - 1))
    ids = [member.decode(errors="replace") for member in members]
    keys = [LEASE_KEY.format(pool=pool, id=id) for id in ids]
    values = cast("list[bytes | None]", await redis.mget(keys)) if keys else []
    leases, refused, now = [], dict[str, LeaseRefused](), time.time()
    for id, value in zip(ids, values, strict=True):
        if value is not None:
            try:
                leases.append(opened(value, key, pool=pool, id=id, now=now))
            except LeaseRefused as refusal:
                refused[id] = refusal
    return LeaseLook(leases, refused, [member for member, value in zip(members, values, strict=True) if value is None])
