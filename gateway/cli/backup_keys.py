"""Copies keys of Redis into a backup, family by family, and out of one again.

The directory is copied between two looks at the head of its audit log, and again if that has moved; the sums and the
entries of a tenant's day are those of one moment. Other keys are whole, but need not be of the same moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from gateway.access.directory.schema import HEAD_KEY
from gateway.access.identity.secret import FINGERPRINT_KEY
from gateway.billing.entry import DAY_DIGITS, TENANTS_KEY, counters_key, entries_key, periods_key
from gateway.cli.backup_file import BackupWriter, KeyFrame, PartFrame, RedisType
from gateway.storage.cluster import ClusterRedis

FAMILIES: dict[str, tuple[str, ...]] = {
    "directory": ("rh1:{directory}:*",),
    "last uses": ("rh1:last-used:*",),
    "spend": ("rh1:limit:*", "rh1:limit-tenants"),
    "usage": ("rh1:usage*",),
    "prompts": ("rh1:prompts:*",),
}
"""Patterns of the keys that are always copied, by family."""
MORE: dict[str, tuple[str, ...]] = {
    "turns": ("rh1:turn:*", "rh1:turn-*"),
    "conversations": ("rh1:conversation:*", "rh1:conversation-*"),
    "chats": ("rh1:chat:*", "rh1:chat-index:*", "rh1:share*", "rh1:comment*"),
    "files": ("rh1:file:*", "rh1:file-*"),
    "batches": ("rh1:batch:*", "rh1:batch-*", "rh1:{batches}:*"),
}
"""Those that `--all` adds."""
_ATTEMPTS = 20
_PAGE = 64
"""Fields, members or entries that are read at once; a piece of a file has 128 KiB."""
_LEFT_OUT = (b"rh1:{directory}:once:", FINGERPRINT_KEY.encode())

Say = Callable[[str], None]


class DirectoryChanges(Exception):
    """The directory changed during each attempt to copy it."""


async def nodes(redis: Redis) -> Sequence[Redis]:
    """Return a client of each server that has keys."""
    return await redis.primaries() if isinstance(redis, ClusterRedis) else [redis]


async def copy_all(redis: Redis, out: BackupWriter, families: Sequence[str], copied: Say) -> None:
    """Copy families. `copied` is called with the family after each key.

    Raises:
        RedisError, OSError: Redis does not answer, or the disk is full.
        DirectoryChanges: the directory changes all the time.
    """
    now = await _milliseconds(redis)
    for family in families:
        if family == "usage":
            await _copy_usage(redis, out, lambda: copied("usage"))
            continue
        place = out.place()
        for _ in range(_ATTEMPTS):
            head = await cast(Any, redis.hgetall(HEAD_KEY))
            for pattern in (FAMILIES | MORE)[family]:
                async for name in keys(redis, pattern):
                    if not name.startswith(_LEFT_OUT):
                        await _copy(redis, out, name, now, spend_only if family == "spend" else None)
                        copied(family)
            if family != "directory" or head == await cast(Any, redis.hgetall(HEAD_KEY)):
                break
            out.back_to(place)
        else:
            raise DirectoryChanges


async def keys(redis: Redis, pattern: str) -> AsyncIterator[bytes]:
    """Yield the keys of all servers that fit; one may come twice."""
    for node in await nodes(redis):
        async for name in node.scan_iter(match=pattern, count=1000):
            yield name


def spend_only(subject: bytes, counters: bytes) -> bytes | None:
    """Keep of a subject's counters what it has spent: rates drain within minutes, and nothing runs after a restore."""
    if subject == b"clock":
        return None
    numbers = counters.split()
    return b" ".join([numbers[0], *[b"0"] * 8, *numbers[9:]])


async def restore(redis: Redis, frame: KeyFrame, part: PartFrame) -> None:
    """Write a part of a key. Doing it again changes nothing."""
    async with redis.pipeline(transaction=False) as pipeline:
        items = iter(part.items)
        match frame.type:
            case "string":
                pipeline.set(frame.name, part.items[0])
            case "hash":
                pipeline.hset(frame.name, items=part.items)
            case "zset":
                pipeline.zadd(frame.name, dict(zip(items, items, strict=True)))
            case "stream":
                for id, fields in zip(items, items, strict=True):
                    pipeline.execute_command("XADD", frame.name, id, *fields)
        if frame.expires:
            pipeline.pexpireat(frame.name, frame.expires)
        for answer in await pipeline.execute(raise_on_error=False):
            if isinstance(answer, ResponseError) and "equal or smaller" not in str(answer):
                raise answer


async def clear(redis: Redis, families: Sequence[str]) -> None:
    """Delete all keys of these families."""
    for family in families:
        for pattern in (FAMILIES | MORE)[family]:
            async for name in keys(redis, pattern):
                await redis.unlink(name)


async def _copy_usage(redis: Redis, out: BackupWriter, copied: Callable[[], None]) -> None:
    tenants = cast("list[tuple[bytes, float]]", await redis.zrange(TENANTS_KEY, 0, -1, withscores=True))
    _write(out, TENANTS_KEY, "zset", _flat(tenants))
    for tenant in (name.decode() for name, _ in tenants):
        found = await redis.zrange(periods_key(tenant), 0, -1, withscores=True)
        periods = cast("list[tuple[bytes, float]]", found)
        _write(out, periods_key(tenant), "zset", _flat(periods))
        copied()
        names = [period.decode() for period, _ in periods]
        for day in (name for name in names if len(name) == DAY_DIGITS):
            of_day = [name for name in names if name.startswith(day)]
            async with redis.pipeline(transaction=True) as pipeline:
                for name in of_day:
                    pipeline.hgetall(counters_key(tenant, name))
                pipeline.xrevrange(entries_key(tenant, day), count=1)
                *counters, newest = await pipeline.execute()
            for name, fields in zip(of_day, counters, strict=True):
                _write(out, counters_key(tenant, name), "hash", _flat(fields.items()))
                copied()
            if newest:
                out.write(KeyFrame(entries_key(tenant, day).encode(), "stream", 0))
                await _copy_stream(redis, out, entries_key(tenant, day), newest[0][0])
                copied()


async def _copy(
    redis: Redis, out: BackupWriter, name: bytes, now: int, change: Callable[[bytes, bytes], bytes | None] | None
) -> None:
    """Copy one key. `change`: returns what is kept of a field's value, None for nothing."""
    async with redis.pipeline(transaction=False) as pipeline:
        pipeline.type(name)
        pipeline.pttl(name)
        type, left = await pipeline.execute()
    if type == b"none":  # it has gone meanwhile
        return
    kind: RedisType = type.decode()
    out.write(KeyFrame(name, kind, now + left if left > 0 else 0))
    match kind:
        case "string":
            out.write(PartFrame([await redis.get(name) or b""]))
        case "stream":
            await _copy_stream(redis, out, name, b"+")
        case "hash" | "zset":
            scan = redis.hscan_iter if kind == "hash" else redis.zscan_iter
            part: list[tuple[Any, Any]] = []
            async for field, value in scan(name, count=_PAGE):
                kept = value if change is None or kind == "zset" else change(field, value)
                if kept is not None:
                    part.append((field, kept))
                if len(part) >= _PAGE:
                    out.write(PartFrame(_flat(part)))
                    part.clear()
            if part:
                out.write(PartFrame(_flat(part)))


async def _copy_stream(redis: Redis, out: BackupWriter, name: str | bytes, last: bytes) -> None:
    first: bytes = b"-"
    while page := cast("list[tuple[bytes, dict[Any, Any]]]", await redis.xrange(name, first, last, count=_PAGE)):
        out.write(PartFrame(_flat((id, _flat(fields.items())) for id, fields in page)))
        first = b"(" + page[-1][0]


def _write(out: BackupWriter, name: str, type: RedisType, items: list[Any]) -> None:
    out.write(KeyFrame(name.encode(), type, 0))
    rest = iter(items)
    while part := list(islice(rest, 2 * _PAGE)):
        out.write(PartFrame(part))


def _flat(pairs: Any) -> list[Any]:
    return [each for pair in pairs for each in pair]


async def _milliseconds(redis: Redis) -> int:
    seconds, micro = await redis.time()
    return seconds * 1000 + micro // 1000
