"""Which gateways are alive: each writes a small heartbeat to Redis and learns of the others while it does.

A heartbeat is a changed score in an index. Beside it each gateway is subscribed to a channel of its own, on which
nobody ever sends: Redis counts a subscriber until its process is gone. `gateway.storage.neighbours` judges by both, so
that a gateway that was killed is noticed within 3 seconds, and one that is only slow has ten. No gateway's clock
matters. What a gateway tells about itself (`facts`) is for operators and `roundhouse top`, and expires; the index and
the times of deaths have no time to live, so that Redis drops neither to make room: by them, gateways give back what a
dead one had reserved and say what became of its turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import ConnectionError, RedisError

from gateway.background import Kept, Periodic
from gateway.storage.cluster import ClusterRedis
from gateway.storage.neighbours import Neighbours

log = logging.getLogger("roundhouse.presence")

GATEWAY_KEY = "rh1:gateway:{id}"
GATEWAYS_KEY = "rh1:gateways"
CHANNEL = "rh1:{{gateways}}:alive:{id}"
LOST_KEY = "rh1:gateways-lost"
BEAT = 0.5
"""Seconds between heartbeats."""
FACTS = 2
"""Heartbeats from one writing of the facts to the next."""
LIFETIME = 10.0
"""Seconds for which the facts are kept."""
LOST_LIFETIME = 24 * 3600
"""Seconds for which it is kept when a gateway died."""
MAX_GATEWAYS = 1000
"""Most entries of the index, and of the lost; the oldest go first."""
_LISTEN = 5.0
"""Seconds of one read of the channel, on which nothing comes."""


def new_id() -> str:
    """Make the id of one gateway process; no other process gets it."""
    return "gw_" + secrets.token_hex(8)


class Presence:
    """Writes the heartbeat of one gateway and knows which others are alive."""

    def __init__(self, redis: Redis, facts: Callable[[], dict[str, str]] = dict, *, id: str | None = None) -> None:
        """Args: facts: returns what the next heartbeat tells; small, and always the same fields."""
        self.id = id or new_id()
        self._redis = redis
        self.facts = facts
        self.on_death: list[Callable[[str], None]] = []
        """Called with the id of each gateway that has died."""
        self.on_return: list[Callable[[], None]] = []
        """Called when this gateway was no longer in the index: others took it for dead, or Redis has lost it."""
        self.withdraws = True
        """Whether the heartbeat is deleted at the end; if not, the others take this gateway for dead."""
        self._neighbours = Neighbours()
        self._beats = 0
        self._away = False
        """Whether the last heartbeat could not be written."""
        self._key = GATEWAY_KEY.format(id=self.id)
        self._beating = Periodic("heartbeat", self._beat, BEAT, at_end=self._withdraw)
        self._connection = Kept("connection", self._stay_connected)

    @property
    def others(self) -> frozenset[str]:
        """Other gateways that were alive at the last heartbeat."""
        return self._neighbours.living

    @property
    def gateways(self) -> int:
        """Number of gateways that share this Redis, this one included."""
        return 1 + len(self.others)

    async def start(self) -> None:
        """Start the heartbeat; returns at once."""
        await self._connection.start()
        await self._beating.start()

    async def aclose(self) -> None:
        """Stop the heartbeat, and delete it from Redis if this gateway withdraws."""
        await self._beating.aclose()
        await self._connection.aclose()

    async def alive(self, id: str) -> bool:
        """Whether a gateway is alive; waits while one that was seen a moment ago shows no sign of life.

        Raises:
            RedisError, OSError: Redis does not answer.
        """
        if id not in self.others:
            return await self._redis.zscore(GATEWAYS_KEY, id) is not None  # it has just begun, or nobody has judged it
        while self._neighbours.doubtful(id):
            if self._away:
                raise ConnectionError("Redis does not answer: whether a gateway is alive is not known")
            await asyncio.sleep(BEAT / 2)
        return id in self.others

    async def died(self, id: str) -> float | None:
        """Return the time of the last heartbeat of a gateway that died in the last day, by its clock; None if it did
        not, or ended in order.

        Raises:
            RedisError, OSError: Redis does not answer.
        """
        last: float | None = await self._redis.zscore(LOST_KEY, id)
        return last

    async def _beat(self) -> None:
        try:
            await self.beat()
            self._away = False
        except (RedisError, OSError) as error:
            self._away = True
            self._neighbours.disturbed()
            log.warning("heartbeat not written", extra={"error": type(error).__name__})

    async def beat(self) -> None:
        """Write one heartbeat and read which other gateways are alive.

        Raises:
            RedisError, OSError: Redis does not answer.
        """
        if tells := self._beats % FACTS == 0:
            await self._tell()
        self._beats += 1
        known = sorted(self.others)
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.zadd(GATEWAYS_KEY, {self.id: time.time()})
            pipeline.zrange(GATEWAYS_KEY, 0, -1, withscores=True)
            if known:
                pipeline.pubsub_numsub(*(CHANNEL.format(id=id) for id in known))
            if tells:
                pipeline.zremrangebyrank(GATEWAYS_KEY, 0, -MAX_GATEWAYS - 1)
            added, members, *rest = await pipeline.execute(raise_on_error=False)
        for answer in (added, members):
            if isinstance(answer, Exception):
                raise answer
        if added and self._beats > 1:
            for tell_own in self.on_return:
                tell_own()
            await self._redis.zrem(LOST_KEY, self.id)
        beats = {name.decode(): beat for name, beat in cast("list[tuple[bytes, float]]", members)}
        beats.pop(self.id, None)
        dead = self._neighbours.look(beats, _connected(rest[0]) if known else ())
        if lost := {id: last for id, last in dead.items() if id in beats}:
            await self._bury(lost)
        for id in dead:
            for tell in self.on_death:
                tell(id)

    async def _tell(self) -> None:
        facts: dict[Any, Any] = {**self.facts(), "id": self.id}
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hset(self._key, mapping=facts)
            pipeline.pexpire(self._key, int(1000 * LIFETIME))
            await pipeline.execute()

    async def _bury(self, dead: dict[str, float]) -> None:
        """Remove gateways from Redis that have died without withdrawing, and write down when that was.

        One that was only cut off enters itself again with its next heartbeat.
        """
        log.warning("gateways have died", extra={"gateways": sorted(dead)})
        with contextlib.suppress(RedisError, OSError):  # they are found dead once more
            async with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.zadd(LOST_KEY, dict(dead))
                pipeline.zremrangebyscore(LOST_KEY, "-inf", time.time() - LOST_LIFETIME)
                pipeline.zremrangebyrank(LOST_KEY, 0, -MAX_GATEWAYS - 1)
                pipeline.zrem(GATEWAYS_KEY, *dead)
                for id in dead:
                    pipeline.delete(GATEWAY_KEY.format(id=id))
                await pipeline.execute()

    async def _stay_connected(self) -> None:
        """Hold the connection by which the others see that this process is there."""
        channel = CHANNEL.format(id=self.id)
        while True:
            try:
                # In a cluster, subscribers are counted by the node that has the slot of all these channels.
                node = await self._redis.node_of(channel) if isinstance(self._redis, ClusterRedis) else self._redis
                async with node.pubsub() as subscription:
                    await subscription.subscribe(channel)
                    while True:
                        await subscription.get_message(timeout=_LISTEN)
            except (RedisError, OSError):
                await asyncio.sleep(BEAT)

    async def _withdraw(self) -> None:
        """Delete this gateway's heartbeat. Never raises: the others would also notice that it has ended."""
        if not self.withdraws:
            return
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.delete(self._key)
                pipeline.zrem(GATEWAYS_KEY, self.id)
                pipeline.zrem(LOST_KEY, self.id)  # it may have counted as dead
                await pipeline.execute()
        except (RedisError, OSError) as error:
            log.warning("heartbeat not withdrawn", extra={"error": type(error).__name__})


def _connected(counted: Any) -> frozenset[str] | None:
    """Return which gateways have a connection, by the answer to PUBSUB NUMSUB; None if Redis does not tell."""
    if isinstance(counted, Exception):
        return None
    channels = cast("list[tuple[bytes, int]]", counted)
    return frozenset(channel.decode().removeprefix(CHANNEL.format(id="")) for channel, count in channels if count)


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
