"""An empty Redis, leases as engines write them, and an actuator that notes what it is told."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from engine.registration import INDEX_KEY, LEASE_KEY, Lease, sealed
from gateway.access.identity.secret import derive
from gateway.config.settings import PoolSettings, ScalingSettings, Settings, demo_settings
from gateway.scaling.actuator import StartedReplica
from gateway.scaling.controller import Controller
from tests.engine.test_registration import LEASE

SECRET = bytes(range(32))


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        await client.flushall()
        yield client


class Clock:
    """Seconds since 1970, which a test moves on; leases are dated by the real time."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Fleet:
    """Implements `Actuator`: a replica that it starts is there, with a lease, as soon as the test says so."""

    def __init__(self, redis: Redis, clock: Clock, pools: Collection[str] = ("small",)) -> None:
        self._redis = redis
        self._clock = clock
        self.pools = pools
        self.started: dict[str, StartedReplica] = {}
        self.told: list[tuple[Any, ...]] = []
        """Calls of `start` and `stop`."""

    async def replicas(self) -> Sequence[StartedReplica]:
        return list(self.started.values())

    async def start(self, pool: str, *, stays: bool = False) -> None:
        name = f"{pool}-{len(self.told)}"
        self.told.append(("start", pool, "stays") if stays else ("start", pool))
        self.started[name] = StartedReplica(name=name, pool=pool, state="starting", since=self._clock(), stays=stays)

    async def stop(self, name: str, seconds: float) -> None:
        self.told.append(("stop", name, seconds))
        replica = self.started.pop(name)
        if replica.state == "ready":
            self.started[name] = msgspec.structs.replace(replica, state="draining", since=self._clock())

    async def ready(self, name: str, **fields: Any) -> None:
        """Have an engine answer; it keeps the name that it was started under."""
        replica = self.started[name]
        self.started[name] = msgspec.structs.replace(replica, id=name, state="ready", since=self._clock())
        await self.announce(name, **fields)

    def fail(self, name: str, reason: str) -> None:
        replica = self.started[name]
        self.started[name] = msgspec.structs.replace(replica, state="failed", since=self._clock(), reason=reason)

    async def end(self, name: str) -> None:
        """Have an engine end that was told to drain."""
        self.started.pop(name, None)
        await self._redis.delete(LEASE_KEY.format(pool="small", id=name))

    async def announce(self, id: str, **fields: Any) -> None:
        """Write an engine's lease."""
        values = {"id": id, "load": 0, "spot": False, "time": time.time(), **fields}
        lease: Lease = msgspec.structs.replace(LEASE, **values)
        await self._redis.set(LEASE_KEY.format(pool=lease.pool, id=id), sealed(lease, derive(SECRET, "engines")))
        await self._redis.zadd(INDEX_KEY.format(pool=lease.pool), {id: lease.time})


def settings(*, scaling: dict[str, Any] | None = None, **pool: Any) -> Settings:
    """Return settings with one pool whose number of engines follows the load."""
    values = {"tier": "small", "name": "tiny", "model": "none", "max_replicas": 4, "start_seconds": 30.0, **pool}
    return msgspec.structs.replace(
        demo_settings(), pools=[PoolSettings(**values)], scaling=ScalingSettings(**{"lease": 60.0, **(scaling or {})})
    )


async def leading(controller: Controller) -> Controller:
    """Have a controller lead."""
    await controller.leadership.renew()
    assert controller.leadership.fence is not None
    return controller
