"""Browser tickets against a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.access.identity import Principal
from gateway.access.tickets import LIFETIME, TICKET_KEY, Tickets
from gateway.errors import Unauthorized, Unavailable
from gateway.records.quota import Quota

pytestmark = pytest.mark.anyio

ALICE = Principal("acme", "alice")
PAGE = "http://127.0.0.1:8080"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_url)
    await client.flushdb()
    yield client
    await client.aclose()


async def test_a_ticket_works_once(redis: Redis) -> None:
    tickets = Tickets(redis)
    ticket = await tickets.issue(ALICE, PAGE)
    assert await tickets.redeem(ticket, PAGE) == ALICE
    with pytest.raises(Unauthorized):
        await tickets.redeem(ticket, PAGE)


async def test_of_many_who_offer_it_at_once_one_gets_in(redis: Redis) -> None:
    """On connections of their own, as several gateways have."""
    ticket = await Tickets(redis).issue(ALICE, PAGE)
    outcomes = await asyncio.gather(*(Tickets(redis).redeem(ticket, PAGE) for _ in range(50)), return_exceptions=True)
    assert outcomes.count(ALICE) == 1
    assert sum(isinstance(outcome, Unauthorized) for outcome in outcomes) == 49


async def test_an_expired_ticket_is_refused(redis: Redis) -> None:
    ticket = await Tickets(redis).issue(ALICE, PAGE)
    [key] = [key async for key in redis.scan_iter(match="rh1:ticket:*")]
    await redis.pexpire(key, 0)
    with pytest.raises(Unauthorized):
        await Tickets(redis).redeem(ticket, PAGE)


async def test_a_ticket_carries_who_it_is_and_what_they_may_do(redis: Redis) -> None:
    quota = Quota(requests_per_minute=3)
    who = Principal("acme", "token:idp", "ann", frozenset({"chat", "admin:read"}), True, quota, expires_at=1.5)
    tickets = Tickets(redis)
    assert await tickets.redeem(await tickets.issue(who, PAGE), PAGE) == who


@pytest.mark.parametrize("origin", [None, "http://evil.example"])
async def test_a_ticket_is_bound_to_its_origin_and_lost_when_tried_elsewhere(redis: Redis, origin: str | None) -> None:
    tickets = Tickets(redis)
    ticket = await tickets.issue(ALICE, PAGE)
    with pytest.raises(Unauthorized):
        await tickets.redeem(ticket, origin)
    with pytest.raises(Unauthorized):
        await tickets.redeem(ticket, PAGE)


async def test_redis_never_holds_the_ticket_itself_and_forgets_it(redis: Redis) -> None:
    ticket = await Tickets(redis).issue(ALICE, PAGE)
    [key] = [key async for key in redis.scan_iter(match="rh1:ticket:*")]
    value = await redis.get(key)
    assert ticket.encode() not in key + value
    assert 0 < await redis.ttl(key) <= LIFETIME


async def test_an_invented_ticket_is_refused(redis: Redis) -> None:
    with pytest.raises(Unauthorized):
        await Tickets(redis).redeem("x" * 43, PAGE)


async def test_without_redis_there_are_no_tickets() -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    with pytest.raises(Unavailable):
        await Tickets(client).issue(ALICE, PAGE)
    with pytest.raises(Unavailable):
        await Tickets(client).redeem("x", PAGE)
    await client.aclose()


def test_the_key_is_documented() -> None:
    assert f"`{TICKET_KEY.format(digest='<digest>')}`" in Path("docs/redis-keys.md").read_text("utf-8")
