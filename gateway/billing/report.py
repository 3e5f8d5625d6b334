"""Reads the usage ledger: sums by any of its names, single turns, and whether both agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast, get_args

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from gateway.billing.cost import microdollars
from gateway.billing.entry import (
    TENANTS_KEY,
    Group,
    LedgerEntry,
    Totals,
    begin_of,
    counters_key,
    entries_key,
    group,
    hour_of,
    parse_counters,
    periods_key,
    totals,
)

By = Literal["day", "hour", "tenant", "model", "adapter", "key", "user"]
BY: tuple[By, ...] = get_args(By)
MAX_PERIODS = 20_000
"""Hours and days that one report may read."""
_READ_AT_ONCE = 500
_decoder = msgspec.json.Decoder(LedgerEntry)


class ReportQuery(Struct, frozen=True, kw_only=True):
    """Selection of a report. Times are whole hours of UTC."""

    since: datetime
    until: datetime
    """End of the time, not included."""
    by: tuple[By, ...] = ("day",)
    tenant: str | None = None
    model: str | None = None
    adapter: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        for name, time in (("from", self.since), ("to", self.until)):
            if time.utcoffset() != timedelta(0) or (time.minute, time.second, time.microsecond) != (0, 0, 0):
                raise ValueError(f"{name}: expected a whole hour of UTC, such as 2026-11-22T14:00Z")
        if self.since >= self.until:
            raise ValueError("to: must be after from")
        hourly = "hour" in self.by
        if (self.until - self.since) / timedelta(hours=1 if hourly else 24) > MAX_PERIODS:
            raise ValueError(f"from: too long ago; a report has {MAX_PERIODS} {'hours' if hourly else 'days'} at most")

    def holds(self, of: Group) -> bool:
        """Whether the query selects counters of this group."""
        wanted = ((self.model, of.model), (self.adapter, of.adapter), (self.key, of.key))
        return all(want in (None, has) for want, has in wanted)


class ReportRow(Struct, frozen=True):
    """One line of a report."""

    names: tuple[str, ...]
    """Names in the order of the query's `by`; times as `2026-11-22` and `2026-11-22T14`."""
    totals: Totals


def periods(since: datetime, until: datetime, *, hourly: bool) -> Iterator[str]:
    """The hours or, where they are whole and `hourly` does not want it finer, days that make up a time."""
    at = since
    while at < until:
        if not hourly and at.hour == 0 and until - at >= timedelta(days=1):
            yield at.strftime("%Y%m%d")
            at += timedelta(days=1)
        else:
            yield at.strftime("%Y%m%d%H")
            at += timedelta(hours=1)


async def report(redis: Redis, query: ReportQuery) -> list[ReportRow]:
    """Read the sums over the counters, sorted by their names; by users, over the single turns that are still kept.

    Raises:
        RedisError: they cannot be read.
    """
    rows: dict[tuple[str, ...], Totals] = {}
    if "user" in query.by:  # the counters know no users
        async for entry in turns(redis, query):
            own, hour = group(entry), hour_of(entry.at)
            names = tuple(entry.user or "" if by == "user" else _name(by, entry.tenant, hour, own) for by in query.by)
            rows[names] = rows.get(names, Totals()) + totals(entry)
        return [ReportRow(names, rows[names]) for names in sorted(rows)]
    wanted = list(periods(query.since, query.until, hourly="hour" in query.by))
    for tenant in await tenants(redis, query.tenant):
        known = {period.decode() for period in cast("list[bytes]", await redis.zrange(periods_key(tenant), 0, -1))}
        there = [period for period in wanted if period in known]
        for begin in range(0, len(there), _READ_AT_ONCE):
            batch = there[begin : begin + _READ_AT_ONCE]
            async with redis.pipeline(transaction=False) as pipeline:
                for period in batch:
                    pipeline.hgetall(counters_key(tenant, period))
                found = await pipeline.execute()
            for period, fields in zip(batch, found, strict=True):
                for own, amount in parse_counters(fields).items():
                    if query.holds(own):
                        names = tuple(_name(by, tenant, period, own) for by in query.by)
                        rows[names] = rows.get(names, Totals()) + amount
    return [ReportRow(names, rows[names]) for names in sorted(rows)]


def total(rows: Sequence[ReportRow]) -> Totals:
    """The sum of a report's rows."""
    return sum((row.totals for row in rows), Totals())


def shown(sums: Totals) -> dict[str, int]:
    """Convert sums to what programs are shown; the cost is in whole micro-dollars, rounded once."""
    return {
        "turns": sums.turns,
        "cache_hits": sums.hits,
        "input_tokens": sums.input,
        "cached_input_tokens": sums.cached,
        "output_tokens": sums.output,
        "cost_microdollars": microdollars(sums.picodollars),
    }


async def tenants(redis: Redis, only: str | None = None) -> list[str]:
    """Tenants that have used something, by name."""
    if only is not None:
        return [only]
    return sorted(name.decode() for name in cast("list[bytes]", await redis.zrange(TENANTS_KEY, 0, -1)))


async def count_turns(redis: Redis, query: ReportQuery) -> int:
    """Return about how many turns `turns` will read."""
    async with redis.pipeline(transaction=False) as pipeline:
        for tenant in await tenants(redis, query.tenant):
            for day in _days(query):
                pipeline.xlen(entries_key(tenant, day))
        return sum(await pipeline.execute())


async def turns(redis: Redis, query: ReportQuery, looked_at: Counter[str] | None = None) -> AsyncIterator[LedgerEntry]:
    """Yield single turns that are still kept, by tenant and then by when they were counted. `query.by` is not used.

    Args:
        looked_at: counts, under "turns", those that were read, also such that the query does not want.

    Raises:
        RedisError: they cannot be read.
    """
    since, until = (int(time.timestamp() * 1000) for time in (query.since, query.until))
    for tenant in await tenants(redis, query.tenant):
        for day in _days(query):
            async for entry in _stream(redis, tenant, day):
                if looked_at is not None:
                    looked_at["turns"] += 1
                if since <= entry.at < until and query.holds(group(entry)):
                    yield entry


class Verified(Struct, frozen=True):
    """The result of verifying one tenant and day."""

    tenant: str
    day: str
    turns: int
    """Turns that were counted."""
    kept: int
    """Turns among them whose entry is still there."""
    problems: list[str]


async def verify(redis: Redis, query: ReportQuery) -> AsyncIterator[Verified]:
    """Compare sums of days, sums of hours and single turns of the days that a query touches.

    What was deleted or trimmed because it is old cannot be compared; `kept` below `turns` says so.

    Raises:
        RedisError: they cannot be read.
    """
    for tenant in await tenants(redis, query.tenant):
        known = cast("list[bytes]", await redis.zrange(periods_key(tenant), 0, -1))
        there = {period.decode() for period in known}
        for day in _days(query):
            if day in there:
                hours = sorted(period for period in there if period.startswith(day) and period != day)
                yield await _verify(redis, tenant, day, hours)


async def _verify(redis: Redis, tenant: str, day: str, hours: list[str]) -> Verified:
    key = entries_key(tenant, day)
    async with redis.pipeline(transaction=True) as pipeline:  # one moment: gateways go on writing
        pipeline.hgetall(counters_key(tenant, day))
        pipeline.xrevrange(key, count=1)
        pipeline.xlen(key)
        for hour in hours:
            pipeline.hgetall(counters_key(tenant, hour))
        by_day, newest, kept, *by_hour = await pipeline.execute()
    daily = parse_counters(by_day)
    hourly = {hour: parse_counters(fields) for hour, fields in zip(hours, by_hour, strict=True)}
    counted = sum(daily.values(), Totals()).turns
    problems: list[str] = []
    if hours:
        problems += _differences("the day", daily, "its hours", _sum(hourly.values()))
    if kept > counted:
        problems.append(f"{kept} turns are kept, {counted} were counted")
    elif newest and kept == counted:
        seen: Counter[str] = Counter()
        single: dict[str, list[dict[Group, Totals]]] = {}
        async for entry in _stream(redis, tenant, day, newest[0][0].decode()):
            seen[entry.turn] += 1
            single.setdefault(hour_of(entry.at), []).append({group(entry): totals(entry)})
        problems += [f"{turn} is there {count} times" for turn, count in seen.items() if count > 1]
        if sum(seen.values()) == kept:  # nothing was trimmed meanwhile
            every = [one for ones in single.values() for one in ones]
            problems += _differences("the day", daily, "its turns", _sum(every))
            for hour in hours:
                problems += _differences(f"hour {hour}", hourly[hour], "its turns", _sum(single.get(hour, [])))
    return Verified(tenant, day, counted, kept, problems)


def _sum(many: Iterable[dict[Group, Totals]]) -> dict[Group, Totals]:
    sums: dict[Group, Totals] = {}
    for counters in many:
        for own, amount in counters.items():
            sums[own] = sums.get(own, Totals()) + amount
    return sums


def _differences(one: str, its: dict[Group, Totals], other: str, others: dict[Group, Totals]) -> Iterator[str]:
    for own in sorted(its.keys() | others.keys()):
        mine, theirs = its.get(own, Totals()), others.get(own, Totals())
        for counter in Totals.__struct_fields__:
            if getattr(mine, counter) != getattr(theirs, counter):
                yield f"{own.field} {counter}: {one} says {getattr(mine, counter)}, {other} {getattr(theirs, counter)}"


async def _stream(redis: Redis, tenant: str, day: str, newest: str = "+") -> AsyncIterator[LedgerEntry]:
    after = "-"
    while page := cast("list[Any]", await redis.xrange(entries_key(tenant, day), after, newest, count=_READ_AT_ONCE)):
        for _, fields in page:
            yield _decoder.decode(fields[b"entry"])
        after = "(" + page[-1][0].decode()


def _days(query: ReportQuery) -> list[str]:
    first = query.since.replace(hour=0)
    return [
        (first + timedelta(days=number)).strftime("%Y%m%d")
        for number in range((query.until - first + timedelta(hours=23)) // timedelta(days=1))
    ]


def _name(by: str, tenant: str, period: str, own: Group) -> str:
    match by:
        case "tenant":
            return tenant
        case "day":
            return begin_of(period).strftime("%Y-%m-%d")
        case "hour":
            return begin_of(period).strftime("%Y-%m-%dT%H")
        case _:
            return str(getattr(own, by))


def current_hour() -> datetime:
    """Return the current hour, in UTC."""
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
