"""Reads single turns of the usage ledger from the newest back, over one tenant or all of them, and one turn by its id.

A turn's place is the day that it counts for and the id of its entry in that day's stream, which Redis' clock gives: the
streams of all tenants together have one order, in which a reader can go on where it has stopped.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from gateway.billing.entry import TENANTS_KEY, LedgerEntry, entries_key

MAX_DAYS = 400
"""Days that one query may span."""
_READ_AT_ONCE = 500
_FEWEST = 20
"""Entries of a stream that are read at once at least."""
_SKEW = 60_000
"""Milliseconds by which the clocks of Redis and a gateway may differ."""
LATE = 120_000
"""Milliseconds after its turn's end within which an entry is mostly written."""
_LONGEST = timedelta(days=2)
"""Time from a turn's beginning within which its entry is searched for."""
_decoder = msgspec.json.Decoder(LedgerEntry)


class TurnQuery(Struct, frozen=True, kw_only=True):
    """Selection of single turns. None: whatever it is."""

    since: datetime
    until: datetime
    """End of the time, not included."""
    model: str | None = None
    adapter: str | None = None
    key: str | None = None
    user: str | None = None
    tier: str | None = None
    outcome: str | None = None
    cache: str | None = None

    def __post_init__(self) -> None:
        if self.since >= self.until:
            raise ValueError("to: must not be before from")
        if self.until - self.since > timedelta(days=MAX_DAYS):
            raise ValueError(f"from: too long ago; a list spans {MAX_DAYS} days at most")

    def holds(self, entry: LedgerEntry) -> bool:
        """Whether the query selects this turn."""
        if not self.since.timestamp() <= entry.at / 1000 < self.until.timestamp():
            return False
        return all(getattr(self, name) in (None, getattr(entry, name)) for name in _SELECTORS)


_SELECTORS = tuple(name for name in TurnQuery.__struct_fields__ if name not in ("since", "until"))


class TurnPlace(Struct, frozen=True):
    """Place of a turn in the order from the newest back."""

    day: str
    milliseconds: int
    number: int
    """Number of the entry among those of the same millisecond."""
    tenant: str
    """Of turns with the same time and number, the first tenant's comes first."""

    def end_for(self, tenant: str) -> str:
        """Return the end of the range of a tenant's stream that comes after this place."""
        return f"{'' if tenant > self.tenant else '('}{self.milliseconds}-{self.number}"


def place_before(end: datetime) -> TurnPlace:
    """Return the place behind which the turns before a time are, but for those that were written later than `LATE`."""
    return TurnPlace(_last_day(end).strftime("%Y%m%d"), int(1000 * end.timestamp()) + LATE, 0, "")


async def newest(
    redis: Redis, tenant: str | None, query: TurnQuery, after: TurnPlace | None = None
) -> AsyncIterator[tuple[TurnPlace, LedgerEntry]]:
    """Yield the turns in a query's time, the newest first, also those that it does not select: `query.holds` says.

    Args:
        tenant: None: all tenants.
        after: the place behind which to begin.

    Raises:
        RedisError: they cannot be read.
    """
    active = await redis.zrangebyscore(TENANTS_KEY, int(query.since.timestamp()), "+inf")
    names = [tenant] if tenant is not None else sorted(name.decode() for name in cast("list[bytes]", active))
    since = max(0, int(1000 * query.since.timestamp()) - _SKEW)
    for day in _days_back(query):
        if after is None or day <= after.day:
            behind = after if after is not None and after.day == day else None
            async for found in _of_day(redis, day, names, behind, since):
                yield found


async def find(redis: Redis, tenant: str, turn: str, began: int) -> LedgerEntry | None:
    """Return a turn's entry, if there is one.

    Args:
        began: Unix time at which the turn began.

    Raises:
        RedisError: they cannot be read.
    """
    begin = datetime.fromtimestamp(began, UTC)
    query = TurnQuery(since=begin, until=begin + _LONGEST)
    for day in reversed(list(_days_back(query))):
        at = str(1000 * began - _SKEW)
        while page := cast("list[Any]", await redis.xrange(entries_key(tenant, day), at, count=_READ_AT_ONCE)):
            for _, entry in map(_decoded, page):
                if entry.turn == turn:
                    return entry
            at = "(" + page[-1][0].decode()
    return None


def _days_back(query: TurnQuery) -> Iterator[str]:
    """Yield the days of a query, the newest first."""
    day = _last_day(query.until)
    while day >= query.since.date():
        yield day.strftime("%Y%m%d")
        day -= timedelta(days=1)


def _last_day(end: datetime) -> date:
    """Return the day of the last moment before a time."""
    return (end - timedelta(microseconds=1)).date()


async def _of_day(
    redis: Redis, day: str, tenants: Sequence[str], after: TurnPlace | None, since: int
) -> AsyncIterator[tuple[TurnPlace, LedgerEntry]]:
    """Merge the streams of a day, of which no more is read than is asked for.

    Args:
        since: Unix time in milliseconds; what was written before is left out.
    """
    count = max(_FEWEST, _READ_AT_ONCE // max(1, len(tenants)))
    waiting: list[tuple[int, int, str, LedgerEntry]] = []
    held = dict.fromkeys(tenants, 0)
    """Entries of each tenant in `waiting`: when there are none left, its next page is read."""
    wanted = {tenant: "+" if after is None else after.end_for(tenant) for tenant in tenants}
    following: dict[str, str] = {}
    while wanted or waiting:
        for tenant, page in (await _pages(redis, day, wanted, since, count)).items():
            for (milliseconds, number), entry in map(_decoded, page):
                heapq.heappush(waiting, (-milliseconds, -number, tenant, entry))
            held[tenant] = len(page)
            if len(page) == count:
                following[tenant] = "(" + page[-1][0].decode()
        wanted = {}
        if waiting:
            milliseconds, number, tenant, entry = heapq.heappop(waiting)
            yield TurnPlace(day, -milliseconds, -number, tenant), entry
            held[tenant] -= 1
            if not held[tenant] and tenant in following:
                wanted = {tenant: following.pop(tenant)}


async def _pages(redis: Redis, day: str, wanted: Mapping[str, str], since: int, count: int) -> dict[str, list[Any]]:
    """Read the newest entries of some tenants before the end that is wanted of each."""
    if not wanted:
        return {}
    async with redis.pipeline(transaction=False) as pipeline:
        for tenant, end in wanted.items():
            pipeline.xrevrange(entries_key(tenant, day), end, since, count=count)
        return dict(zip(wanted, await pipeline.execute(), strict=True))


def _decoded(item: tuple[bytes, dict[bytes, bytes]]) -> tuple[tuple[int, int], LedgerEntry]:
    """Return the id of a stream's entry as numbers, and the turn."""
    id, fields = item
    milliseconds, _, number = id.decode().partition("-")
    return (int(milliseconds), int(number)), _decoder.decode(fields[b"entry"])
