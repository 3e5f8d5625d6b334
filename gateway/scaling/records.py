"""What is known and decided of each pool, in Redis: for operators, for the next look, and for the next controller."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from gateway.scaling.leader import LEADER_KEY
from gateway.scaling.observation import PoolHistory
from scale.policy import PoolMemory
from scale.reasons import Figure, ScaleReason, sentence_of

RECORD_KEY = "rh1:pool:{pool}"

_WRITE = """
local written = tonumber(redis.call('HGET', KEYS[1], 'fence') or 0)
if written > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'fence', unpack(ARGV))
return 1
"""
"""Writes a record. KEYS: record. ARGV: number of the leader's lease, fields with their values. Returns 0 if the record
has a newer number."""


class PoolReason(Struct, frozen=True, omit_defaults=True):
    """Why a pool has the size that it has."""

    kind: str
    text: str
    """Its sentence, for people."""
    alert: bool = False
    """Whether an operator should look at it."""
    figures: Mapping[str, Figure] = {}
    """What the sentence tells, by names; none in the record of an older version."""

    @classmethod
    def of(cls, reason: ScaleReason) -> PoolReason:
        return cls(reason.kind, reason.text, reason.alert, reason.figures)


class Remembered(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a controller needs of the last look."""

    history: PoolHistory = PoolHistory()
    memory: PoolMemory = PoolMemory()
    failed_starts: int = 0
    """Starts that have failed since the last one that did not."""
    failed_at: float = 0.0
    """When the last one failed."""
    next_start: float = 0.0
    """Time before which no engine is started, after such ones."""


class PoolRecord(Struct, frozen=True, kw_only=True):
    """A decision, with what it was made of."""

    desired: int
    min_replicas: int
    max_replicas: int
    ready: int
    starting: int
    draining: int
    offered: float
    """Replicas that the work keeps busy."""
    reasons: tuple[PoolReason, ...] = ()
    generation: int = 1
    """Number of changes of `desired`."""
    since: float
    """Time of the last of them, in seconds since 1970."""
    time: float
    """Time of the look."""
    remembered: Remembered = Remembered()

    @property
    def alerts(self) -> list[PoolReason]:
        return [reason for reason in self.reasons if reason.alert]


class PoolCause(Struct, frozen=True):
    """Why a pool has the size that it has, for programs, which may say it in another language."""

    kind: str
    """In one word."""
    sentence: str
    """In English, with `{name}` for each figure that is told apart."""
    figures: Mapping[str, Figure]
    alert: bool

    @classmethod
    def of(cls, reason: PoolReason) -> PoolCause:
        found = sentence_of(reason.kind, reason.figures) if reason.figures else None
        return cls(reason.kind, found or reason.text, reason.figures, reason.alert)


class PoolSize(Struct, frozen=True):
    """What operators are told of a pool whose number of engines follows its load."""

    pool: str
    desired: int
    """Engines that it is to have."""
    ready: int
    starting: int
    draining: int
    min_replicas: int
    max_replicas: int
    offered: float
    """Engines that the work keeps busy."""
    since: float
    """When `desired` changed last, in seconds since 1970."""
    looked: float
    """When it was last looked at."""
    reasons: list[str]
    alerts: list[str]
    """Those of the reasons that somebody should look at."""
    causes: list[PoolCause]
    """The reasons again, for programs."""

    @classmethod
    def of(cls, pool: str, record: PoolRecord) -> PoolSize:
        return cls(
            pool=pool,
            desired=record.desired,
            ready=record.ready,
            starting=record.starting,
            draining=record.draining,
            min_replicas=record.min_replicas,
            max_replicas=record.max_replicas,
            offered=record.offered,
            since=record.since,
            looked=record.time,
            reasons=[reason.text for reason in record.reasons],
            alerts=[reason.text for reason in record.alerts],
            causes=[PoolCause.of(reason) for reason in record.reasons],
        )


class PoolLeader(Struct, frozen=True):
    """Who leads."""

    id: str
    fence: int
    seconds: float
    """How long the lease still lasts; not above 0: it has ended."""


class PoolRecords:
    """The records of all pools. Methods raise RedisError and OSError where Redis does not answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._write = redis.register_script(_WRITE)

    async def read(self, pool: str) -> PoolRecord | None:
        """Read a pool's record; None if there is none, or it is of a version that nobody here understands."""
        found = await cast("Awaitable[dict[bytes, bytes]]", self._redis.hgetall(RECORD_KEY.format(pool=pool)))
        if not found:
            return None
        remembered = found.pop(b"remembered", b"")
        fields: dict[str, Any] = {name.decode(): value.decode() for name, value in found.items()}
        try:
            fields["reasons"] = msgspec.json.decode(fields.get("reasons", "[]"))
            fields["remembered"] = msgspec.msgpack.decode(remembered)
            return msgspec.convert(fields, PoolRecord, strict=False)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    async def write(self, pool: str, record: PoolRecord, fence: int) -> bool:
        """Write a pool's record; False if another controller has written one under a newer number."""
        fields: dict[str, Any] = {name: getattr(record, name) for name in record.__struct_fields__}
        fields["reasons"] = msgspec.json.encode(record.reasons)
        fields["remembered"] = msgspec.msgpack.encode(record.remembered)
        words = [word for pair in fields.items() for word in pair]
        return bool(await self._write(keys=[RECORD_KEY.format(pool=pool)], args=[fence, *words]))

    async def leader(self) -> PoolLeader | None:
        """Read who leads, or led last."""
        found = await cast("Awaitable[Sequence[bytes | None]]", self._redis.hmget(LEADER_KEY, ["id", "fence", "until"]))
        id, fence, until = found
        if id is None or fence is None or until is None:
            return None
        return PoolLeader(id.decode(), int(fence), int(until) / 1000 - time.time())
