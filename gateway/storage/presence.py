"""Which gateways are alive: each writes a small heartbeat to Redis and learns of the others while it does.

A heartbeat is a hash that expires: a gateway is alive while its key is there. Redis keeps the time, so that no
gateway's clock matters. What a gateway tells about itself (`facts`) is for operators and `roundhouse top`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.background import Periodic

log = logging.getLogger("roundhouse.presence")

GATEWAY_KEY = "rh1:gateway:{id}"
GATEWAYS_KEY = "rh1:gateways"
INTERVAL = 1.0
"""Seconds between heartbeats."""
LIFETIME = 10.0
"""Seconds after its last heartbeat at which a gateway counts as dead."""
DEATHS = 3
"""Heartbeats of this gateway in a row that miss another gateway before it is given up. One miss does not count: a Redis
whose clock was set ahead, or that stood still, has forgotten everybody for a moment."""
MAX_GATEWAYS = 1000
"""Most entries of the index; the oldest go first."""
_INDEX_LIFETIME = 3600


def new_id() -> str:
    """Make the id of one gateway process; no other process gets it."""
    return "gw_" + secrets.token_hex(8)


class Presence:
    """Writes the heartbeat of one gateway and knows which others are alive."""

    def __init__(self, redis: Redis, facts: Callable[[], dict[str, str]] = dict, *, id: str | None = None) -> None:
        """Args: facts: returns what the next heartbeat holds; small, and always the same fields."""
        self.id = id or new_id()
        self.others: frozenset[str] = frozenset()
        """Other gateways that were alive at the last heartbeat."""
        self._missed: dict[str, int] = {}
        """Number of heartbeats in a row that have missed a gateway seen shortly before, by its id."""
        self._redis = redis
        self.facts = facts
        self._key = GATEWAY_KEY.format(id=self.id)
        self._beating = Periodic("heartbeat", self._beat, INTERVAL, at_end=self._withdraw)

    @property
    def gateways(self) -> int:
        """Number of gateways that share this Redis, this one included."""
        return 1 + len(self.others)

    async def start(self) -> None:
        """Start the heartbeat; returns at once."""
        await self._beating.start()

    async def aclose(self) -> None:
        """Stop the heartbeat and delete it from Redis."""
        await self._beating.aclose()

    async def _beat(self) -> None:
        try:
            await self.beat()
        except (RedisError, OSError) as error:
            log.warning("heartbeat not written", extra={"error": type(error).__name__})

    async def beat(self) -> None:
        """Write one heartbeat and read which other gateways are alive.

        Raises:
            RedisError, OSError: Redis does not answer.
        """
        facts: dict[Any, Any] = {**self.facts(), "id": self.id}
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hset(self._key, mapping=facts)
            pipeline.pexpire(self._key, int(1000 * LIFETIME))
            await pipeline.execute()
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.zadd(GATEWAYS_KEY, {self.id: time.time()})
            pipeline.zremrangebyrank(GATEWAYS_KEY, 0, -MAX_GATEWAYS - 1)
            pipeline.expire(GATEWAYS_KEY, _INDEX_LIFETIME)
            pipeline.zrange(GATEWAYS_KEY, 0, -1)
            members = (await pipeline.execute())[-1]
        known = {name.decode() for name in cast("list[bytes]", members)}
        living_now = frozenset(await living(self._redis, known - {self.id}))
        missed = {id: self._missed.get(id, 0) + 1 for id in (self.others | self._missed.keys()) - living_now}
        self._missed = {id: count for id, count in missed.items() if count < DEATHS}
        self.others = living_now

    async def comes_back(self, id: str) -> bool:
        """Whether a gateway without a heartbeat has one again; waits for it if it was seen a moment ago.

        Raises:
            RedisError, OSError: Redis does not answer.
        """
        for _ in range(4 * DEATHS + 4):  # more than that and this gateway's own heartbeat has stopped
            if id not in self.others and id not in self._missed:
                break
            await asyncio.sleep(INTERVAL / 4)
            if await alive(self._redis, id):
                return True
        return False

    async def _withdraw(self) -> None:
        """Delete this gateway's heartbeat. Never raises: it would also expire by itself."""
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.delete(self._key)
                pipeline.zrem(GATEWAYS_KEY, self.id)
                await pipeline.execute()
        except (RedisError, OSError) as error:
            log.warning("heartbeat not withdrawn", extra={"error": type(error).__name__})


async def alive(redis: Redis, id: str) -> bool:
    """Whether this gateway is alive.

    Raises:
        RedisError, OSError: Redis does not answer.
    """
    return bool(await redis.exists(GATEWAY_KEY.format(id=id)))


async def living(redis: Redis, ids: Iterable[str]) -> set[str]:
    """Return those of `ids` that are alive; remove the others from the index."""
    names = sorted(ids)
    if not names:
        return set()
    async with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.exists(GATEWAY_KEY.format(id=name))
        found = {name for name, exists in zip(names, await pipeline.execute(), strict=True) if exists}
    gone = set(names) - found
    if gone:
        await redis.zrem(GATEWAYS_KEY, *gone)
    return found


async def read(redis: Redis) -> dict[str, dict[str, str]]:
    """Read the facts of all living gateways, by id.

    Raises:
        RedisError, OSError: Redis does not answer.
    """
    names = [name.decode() for name in cast("list[bytes]", await redis.zrange(GATEWAYS_KEY, 0, -1))]
    if not names:
        return {}
    async with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hgetall(GATEWAY_KEY.format(id=name))
        hashes = await pipeline.execute()
    return {
        name: {field.decode(): value.decode() for field, value in facts.items()}
        for name, facts in zip(names, hashes, strict=True)
        if facts
    }
