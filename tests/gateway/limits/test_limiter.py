"""The limiter against a real Redis: nothing overshoots, nothing leaks, whatever the order of events."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.errors import InvalidRequest, RateLimited, Unavailable
from gateway.limits import limiter as limiter_module
from gateway.limits.limiter import HELD_KEY, LEASES_KEY, LEVEL_KEY, Limiter, Reservation
from gateway.settings import Limits, Settings, Tenant
from tests.conftest import redis_server

pytestmark = pytest.mark.anyio

# One token a minute: within a test the bucket does not refill by a whole token.
STILL = Limits(tokens_per_minute=1, burst_tokens=1000)
_names = itertools.count()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_url)
    yield client
    await client.aclose()


def limiter_over(redis: Redis, limits: Limits = STILL, **tenants: Limits) -> Limiter:
    overrides = [Tenant(name=name, limits=own) for name, own in tenants.items()]
    return Limiter(redis, Settings(limits=limits, tenants=overrides))


def new_tenant() -> str:
    return f"tenant-{next(_names)}"


async def test_a_turn_is_charged_what_it_used(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    reservation = await limiter.reserve(tenant, "t1", 300)
    assert (await limiter.state(tenant)).remaining == 700
    state = await limiter.settle(reservation, 120)
    assert (state.limit, state.remaining) == (1000, 880)
    assert state.reset_seconds == pytest.approx(120 * 60, abs=1)


async def test_what_is_not_there_is_refused_with_the_time_it_takes(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis, Limits(tokens_per_minute=60, burst_tokens=100)), new_tenant()
    await limiter.reserve(tenant, "t1", 100)
    with pytest.raises(RateLimited) as caught:
        await limiter.reserve(tenant, "t2", 10)
    assert caught.value.retry_after == pytest.approx(10, abs=0.5)
    assert int(caught.value.headers["retry-after"]) >= 9


async def test_more_than_the_bucket_holds_is_a_bad_request_not_an_endless_wait(redis: Redis) -> None:
    with pytest.raises(InvalidRequest, match="1001 tokens"):
        await limiter_over(redis).reserve(new_tenant(), "t1", 1001)


async def test_the_same_turn_reserves_once_and_settles_once(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    first = await limiter.reserve(tenant, "t1", 300)
    await limiter.reserve(tenant, "t1", 300)
    assert (await limiter.state(tenant)).remaining == 700
    await limiter.settle(first, 100)
    assert (await limiter.settle(first, 100)).remaining == 900


async def test_the_bucket_refills(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis, Limits(tokens_per_minute=600_000, burst_tokens=1000)), new_tenant()
    await limiter.settle(await limiter.reserve(tenant, "t1", 1000), 1000)
    await asyncio.sleep(0.15)
    assert (await limiter.state(tenant)).remaining == 1000


async def test_a_tenant_may_have_limits_of_its_own(redis: Redis) -> None:
    limiter = limiter_over(redis, acme=Limits(tokens_per_minute=1, burst_tokens=50))
    assert (await limiter.state("acme")).limit == 50
    assert (await limiter.state(new_tenant())).limit == 1000


async def test_fifty_concurrent_turns_never_overshoot(redis: Redis, redis_url: str) -> None:
    """Two gateways, one bucket of 1000 tokens, fifty turns of 70: exactly fourteen fit."""
    tenant = new_tenant()
    other = Redis.from_url(redis_url)
    gateways = [limiter_over(redis), limiter_over(other)]
    outcomes = await asyncio.gather(
        *(gateways[turn % 2].reserve(tenant, f"t{turn}", 70) for turn in range(50)), return_exceptions=True
    )
    granted = [outcome for outcome in outcomes if isinstance(outcome, Reservation)]
    assert len(granted) == 14
    assert all(isinstance(outcome, Reservation | RateLimited) for outcome in outcomes)
    await asyncio.gather(*(gateways[0].settle(reservation, 0) for reservation in granted))
    assert (await gateways[1].state(tenant)).remaining == 1000
    await other.aclose()


async def test_the_reservation_of_a_dead_gateway_comes_back(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter_module, "LEASE", 0.05)
    limiter, tenant = limiter_over(redis), new_tenant()
    await limiter.reserve(tenant, "abandoned", 400)
    await asyncio.sleep(0.08)
    assert (await limiter.state(tenant)).remaining == 1000


async def test_a_turn_that_outlives_its_lease_is_charged_in_full(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter_module, "LEASE", 0.2)
    limiter, tenant = limiter_over(redis), new_tenant()
    reservation = await limiter.reserve(tenant, "long", 400)
    await asyncio.sleep(0.25)
    assert (await limiter.state(tenant)).remaining == 1000
    assert (await limiter.settle(reservation, 150)).remaining == 850


async def test_every_key_expires(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    await limiter.reserve(tenant, "t1", 1)
    for key in (LEVEL_KEY, HELD_KEY, LEASES_KEY):
        assert await redis.ttl(key.format(tenant=tenant)) > 0


async def test_the_script_is_loaded_again_after_a_restart_of_redis(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    await limiter.reserve(tenant, "t1", 1)
    await redis.script_flush()
    assert not (await limiter.reserve(tenant, "t2", 1)).local


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["reserve", "settle"]), st.integers(0, 5), st.integers(0, 600)), max_size=30
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS)
def test_any_order_of_events_keeps_the_books(redis_url: str, operations: list[tuple[str, int, int]]) -> None:
    """Level = burst - held - used, never below zero while use stays within what was reserved."""

    async def run() -> None:
        redis = Redis.from_url(redis_url)
        limiter, tenant = limiter_over(redis), new_tenant()
        open_: dict[int, Reservation] = {}
        used = 0
        for operation, turn, tokens in operations:
            if operation == "reserve" and turn not in open_:
                free = 1000 - used - sum(reservation.tokens for reservation in open_.values())
                try:
                    open_[turn] = await limiter.reserve(tenant, f"t{turn}", tokens)
                    assert tokens <= free
                except RateLimited:
                    assert tokens > free
            elif operation == "settle" and turn in open_:
                reservation = open_.pop(turn)
                spent = min(tokens, reservation.tokens)
                used += spent
                await limiter.settle(reservation, spent)
                await limiter.settle(reservation, 999)
                limiter.outstanding += 1
            expected = 1000 - used - sum(reservation.tokens for reservation in open_.values())
            assert (await limiter.state(tenant)).remaining == expected >= 0
        assert limiter.outstanding == len(open_)
        await redis.aclose()

    asyncio.run(run())


async def test_without_redis_turns_are_limited_in_this_process() -> None:
    server = redis_server()
    with server as url:
        client = Redis.from_url(url, socket_timeout=0.5, socket_connect_timeout=0.5)
        limiter = limiter_over(client)
        server.stop()
        reservation = await limiter.reserve("acme", "t1", 900)
        assert reservation.local
        with pytest.raises(RateLimited):
            await limiter.reserve("acme", "t2", 200)
        assert (await limiter.settle(reservation, 100)).remaining == 900
        await client.aclose()


async def test_without_redis_turns_are_refused_if_the_limits_say_so() -> None:
    server = redis_server()
    with server as url:
        client = Redis.from_url(url, socket_timeout=0.5, socket_connect_timeout=0.5)
        limiter = limiter_over(client, Limits(on_redis_down="deny"))
        server.stop()
        with pytest.raises(Unavailable):
            await limiter.reserve("acme", "t1", 1)
        await client.aclose()


async def test_what_could_not_be_settled_is_settled_when_redis_is_back(redis: Redis, redis_url: str) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    first = await limiter.reserve(tenant, "t1", 500)
    second = await limiter.reserve(tenant, "t2", 100)
    script = limiter._script
    broken = Redis.from_url("unix:///nonexistent/redis.sock")
    limiter._script = broken.register_script("return 1")
    await limiter.settle(first, 10)
    limiter._script = script
    await limiter.settle(second, 20)
    assert (await limiter.state(tenant)).remaining == 970
    await broken.aclose()


def test_every_key_is_documented() -> None:
    documented = Path("docs/redis-keys.md").read_text("utf-8")
    for key in (LEVEL_KEY, HELD_KEY, LEASES_KEY):
        assert f"`{key.format(tenant='<tenant>')}`" in documented
