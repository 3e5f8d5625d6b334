"""Single turns from the newest back: in one order over all tenants, wherever a reader goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from gateway.billing.entry import LedgerEntry, entries_key
from gateway.billing.recent import TurnPlace, TurnQuery, find, newest, place_before
from tests.gateway.billing.test_ledger import AT, HOUR, client, entry
from tests.gateway.billing.test_report import fill

pytestmark = pytest.mark.anyio

DAYS = ("20261123", "20261122")
TENANTS = ("acme", "initech", "umbrella")
QUERY = TurnQuery(since=datetime(2026, 11, 22, tzinfo=UTC), until=datetime(2026, 11, 24, tzinfo=UTC))


def many(count: int) -> list[LedgerEntry]:
    """Turns of three tenants and two days; one tenant has most of them."""
    return [
        entry(number, at=AT + 24 * HOUR * (number % 2), tenant=TENANTS[max(0, number % 7 - 4)], user=f"u{number % 3}")
        for number in range(count)
    ]


async def expected(redis: Redis) -> list[LedgerEntry]:
    """The turns of all streams, sorted by day, then by the ids that Redis has given."""
    found = []
    for day in DAYS:
        for tenant in TENANTS:
            streamed: Any = await redis.xrange(entries_key(tenant, day))
            for id, fields in streamed:
                milliseconds, number = map(int, id.split(b"-"))
                turn = msgspec.json.decode(fields[b"entry"], type=LedgerEntry)
                found.append(((-int(day), -milliseconds, -number, tenant), turn))
    return [turn for _, turn in sorted(found, key=lambda each: each[0])]


async def read(
    redis: Redis, after: TurnPlace | None = None, tenant: str | None = None
) -> list[tuple[TurnPlace, LedgerEntry]]:
    return [found async for found in newest(redis, tenant, QUERY, after)]


async def test_all_tenants_turns_come_in_one_order(redis_url: str) -> None:
    """Over several pages of each; each turn once."""
    async with client(redis_url) as redis:
        await fill(redis, many(1500))
        found = [turn for _, turn in await read(redis)]
        assert len({turn.turn for turn in found}) == 1500
        assert found == await expected(redis)
        own = [turn for _, turn in await read(redis, tenant="initech")]
        assert own == [turn for turn in found if turn.tenant == "initech"]


async def test_a_reader_goes_on_where_it_stopped(redis_url: str) -> None:
    """Behind any turn, also between turns of two tenants with the same id."""
    async with client(redis_url) as redis:
        await fill(redis, many(60))
        for tenant in TENANTS:
            twin = msgspec.json.encode(entry(0, turn=f"twin-{tenant}", at=AT + 24 * HOUR, tenant=tenant))
            await redis.xadd(entries_key(tenant, DAYS[0]), {"entry": twin}, id="9999999999999-7")
        whole = await read(redis)
        assert [each.turn for _, each in whole[:3]] == [f"twin-{tenant}" for tenant in TENANTS]
        for index in (0, 1, 2, 10, 33, 62):
            assert await read(redis, after=whole[index][0]) == whole[index + 1 :]


async def test_no_more_of_a_day_is_read_than_a_query_needs(redis_url: str) -> None:
    """Neither what was written before its time, nor long after it if the reader says so."""
    since, until = datetime(2026, 11, 22, 13, tzinfo=UTC), datetime(2026, 11, 22, 14, tzinfo=UTC)
    begin, end = (int(1000 * time.timestamp()) for time in (since, until))
    written = [begin - HOUR, begin, end - 1, end + 60_000, end + HOUR]
    async with client(redis_url) as redis:
        for number, milliseconds in enumerate(written):
            turn = msgspec.json.encode(entry(number, at=milliseconds))
            await redis.xadd(entries_key("acme", "20261122"), {"entry": turn}, id=f"{milliseconds}-0")
        query = TurnQuery(since=since, until=until)
        whole = [place.milliseconds async for place, _ in newest(redis, "acme", query)]
        assert whole == written[:0:-1]
        part = [place.milliseconds async for place, _ in newest(redis, "acme", query, place_before(until))]
        assert part == written[3:0:-1]
        first = TurnQuery(since=datetime(1969, 12, 1, tzinfo=UTC), until=datetime(1970, 1, 1, tzinfo=UTC))
        assert [found async for found in newest(redis, "acme", first)] == []


async def test_a_query_selects(redis_url: str) -> None:
    """By names, outcomes and time; a turn outside of the time is not held, though its day is read."""
    one = entry(1, user="ada", adapter="pirate", cache="hit", outcome="failed", tier="small")
    fields = {"user": "ada", "adapter": "pirate", "cache": "hit", "outcome": "failed", "tier": "small", "key": "ci"}

    def asked(**changed: Any) -> bool:
        return TurnQuery(since=QUERY.since, until=QUERY.until, **changed).holds(one)

    assert asked() and asked(**fields)
    assert not any(asked(**{name: "other"}) for name in (*fields, "model"))
    noon = datetime(2026, 11, 22, 14, 30, tzinfo=UTC)
    assert TurnQuery(since=noon, until=noon + timedelta(seconds=1)).holds(one)
    assert not TurnQuery(since=noon - timedelta(hours=1), until=noon).holds(one)


@pytest.mark.parametrize(
    ("since", "message"),
    [(QUERY.until, "to: must not be before"), (datetime(2020, 1, 1, tzinfo=UTC), "from: too long")],
)
def test_a_time_that_cannot_be_listed_is_refused(since: datetime, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TurnQuery(since=since, until=QUERY.until)


async def test_a_turn_is_found_by_its_id(redis_url: str) -> None:
    """From the second at which it began; also on the day after."""
    now = datetime.now(UTC).replace(microsecond=0)
    at = int(now.timestamp() * 1000)
    async with client(redis_url) as redis:
        later = entry(1, at=at + 24 * HOUR)
        await fill(redis, [*(entry(number, at=at) for number in range(2, 700)), later])
        assert await find(redis, "acme", "resp_1", int(now.timestamp())) == later
        assert await find(redis, "acme", "resp_5", int(now.timestamp())) == entry(5, at=at)
        assert await find(redis, "acme", "resp_9999", int(now.timestamp())) is None
        assert await find(redis, "umbrella", "resp_5", int(now.timestamp())) is None
