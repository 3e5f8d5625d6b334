"""The limiter against a real Redis: several gateways, leases, and a Redis that comes and goes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.config.settings import LimitSettings, Settings
from gateway.errors import InvalidRequest, RateLimited, Unavailable
from gateway.limits import dead_gateways
from gateway.limits import limiter as limiter_module
from gateway.limits.counters import Counters
from gateway.limits.dead_gateways import RELEASED_KEY
from gateway.limits.limiter import LEASE, Limiter
from gateway.limits.readings import check_size
from gateway.limits.reservation import Reservation
from gateway.limits.script import HELD_KEY, LEASES_KEY, STATE_KEY, keys
from gateway.protocol.stream import LimitState
from gateway.records.quota import Amounts, Charge, LimitSubject, Quota
from tests.conftest import redis_server
from tests.lost_writes import lose_since, remember

pytestmark = pytest.mark.anyio

STILL = (LimitSubject("tenant", Quota(output_tokens_per_minute=1, burst_seconds=60_000)),)
"""1000 tokens, of which none comes back while a test looks."""
_names = itertools.count()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_url)
    yield client
    await client.aclose()


def limiter_over(redis: Redis, gateways: int = 1, **limits: str) -> Limiter:
    return Limiter(redis, Settings(limits=LimitSettings(**limits)), gateways=lambda: gateways)  # type: ignore[arg-type]


def new_tenant() -> str:
    return f"tenant-{next(_names)}"


def turn(tokens: int, spend: int = 0) -> Amounts:
    return Amounts(requests=1, turns=1, output_tokens=tokens, spend=spend)


def used(tokens: int, spend: int = 0) -> Amounts:
    return Amounts(output_tokens=tokens, spend=spend)


def left(state: LimitState) -> int:
    (reading,) = state.readings
    return reading.remaining


async def stored(redis: Redis, tenant: str, subject: str = "tenant") -> Counters:
    text = await redis.hget(keys(tenant)[0], subject)  # type: ignore[misc]
    assert text is not None
    return Counters.decode(text)


async def test_a_turn_is_charged_what_it_used(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    reservation = await limiter.reserve(tenant, "t1", turn(300), STILL)
    assert left(await limiter.read(tenant, STILL)) == left(limiter.state(reservation)) == 700
    state = await limiter.settle(reservation, used(120))
    (reading,) = state.readings
    assert (reading.limit, reading.remaining) == (1000, 880)
    assert reading.reset_seconds == pytest.approx(120 * 60, abs=1)


async def test_what_is_not_limited_asks_nobody() -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    limiter = limiter_over(client, on_redis_down="deny")
    reservation = await limiter.reserve("acme", "t1", turn(10**9), ())
    assert await limiter.settle(reservation, used(10**9)) == LimitState()
    await client.aclose()


async def test_what_is_not_there_is_refused_with_the_limit_and_the_time_it_takes(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    subjects = (
        LimitSubject("tenant", Quota(output_tokens_per_minute=60)),
        LimitSubject("key:ci", Quota(output_tokens_per_minute=30, burst_seconds=120)),
    )
    await limiter.settle(await limiter.reserve(tenant, "t1", turn(60), subjects), used(60))
    with pytest.raises(RateLimited, match="output_tokens_per_minute of key:ci") as caught:
        await limiter.reserve(tenant, "t2", turn(10), subjects)
    error = caught.value
    assert (error.limit, error.code) == ("output_tokens_per_minute", "rate_limit_exceeded")
    assert error.retry_after == pytest.approx(20, abs=0.5)
    assert int(error.headers["retry-after"]) in (20, 21)
    assert error.headers["x-ratelimit-remaining-tokens"] == "0"
    assert (await stored(redis, tenant)).turns == 0, "nothing of it was taken"


async def test_a_budget_that_is_spent_is_refused_until_the_day_ends(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    subjects = (LimitSubject("tenant", Quota(spend_per_day=100)),)
    await limiter.settle(await limiter.reserve(tenant, "t1", turn(1, 90), subjects), used(1, 90))
    with pytest.raises(RateLimited) as caught:
        await limiter.reserve(tenant, "t2", turn(1, 11), subjects)
    assert (caught.value.code, caught.value.limit) == ("insufficient_quota", "spend_per_day")
    assert 0 < caught.value.retry_after <= 86_400


async def test_more_than_a_limit_can_give_is_a_bad_request_not_an_endless_wait(redis: Redis) -> None:
    with pytest.raises(InvalidRequest, match="1001 output tokens") as caught:
        await limiter_over(redis).reserve(new_tenant(), "t1", turn(1001), STILL)
    assert caught.value.param == "max_output_tokens"
    narrow = [LimitSubject("tenant", Quota(input_tokens_per_minute=5))]
    with pytest.raises(InvalidRequest, match="6 input tokens") as caught:
        check_size(narrow, Amounts(requests=1, turns=1, input_tokens=6))
    assert caught.value.param is None


async def test_a_soft_limit_warns(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    first = await limiter.reserve(tenant, "t1", turn(799), STILL)
    assert not limiter.state(first).readings[0].warning
    second = await limiter.reserve(tenant, "t2", turn(1), STILL)
    assert limiter.state(second).readings[0].warning


async def test_the_same_turn_reserves_once_and_settles_once(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    first = await limiter.reserve(tenant, "t1", turn(300), STILL)
    await limiter.reserve(tenant, "t1", turn(300), STILL)
    assert left(await limiter.read(tenant, STILL)) == 700
    await limiter.settle(first, used(100))
    assert left(await limiter.settle(first, used(100))) == 900
    assert limiter.outstanding == 0


async def test_fifty_concurrent_turns_never_overshoot(redis: Redis, redis_url: str) -> None:
    """Two gateways, one limit of 1000 tokens, fifty turns of 70: exactly fourteen fit."""
    tenant = new_tenant()
    other = Redis.from_url(redis_url)
    gateways = [limiter_over(redis), limiter_over(other)]
    outcomes = await asyncio.gather(
        *(gateways[each % 2].reserve(tenant, f"t{each}", turn(70), STILL) for each in range(50)),
        return_exceptions=True,
    )
    granted = [outcome for outcome in outcomes if isinstance(outcome, Reservation)]
    assert len(granted) == 14
    assert all(isinstance(outcome, Reservation | RateLimited) for outcome in outcomes)
    await asyncio.gather(*(gateways[0].settle(reservation, used(0)) for reservation in granted))
    assert left(await gateways[1].read(tenant, STILL)) == 1000
    await other.aclose()


async def later(redis: Redis, tenant: str, seconds: float) -> None:
    """Time passes for the tenant's leases: their ends come nearer."""
    leases = keys(tenant)[2]
    for id, end in await redis.zrange(leases, 0, -1, withscores=True):
        await redis.zadd(leases, {id: end - 1000 * seconds})


async def test_the_reservation_of_a_dead_gateway_comes_back(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    await limiter.reserve(tenant, "abandoned", turn(400), STILL)
    await later(redis, tenant, 0.9 * LEASE)
    assert left(await limiter.read(tenant, STILL)) == 600
    await later(redis, tenant, 0.2 * LEASE)
    assert left(await limiter.read(tenant, STILL)) == 1000


async def test_what_a_dead_gateway_held_comes_back_when_its_death_is_noticed(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both others notice it; what living gateways hold stays, and a gateway that was not dead holds its own again."""
    monkeypatch.setattr(dead_gateways, "GRACE", 0.0)
    dead, one, other, tenant = limiter_over(redis), limiter_over(redis), limiter_over(redis), new_tenant()
    reservation = await dead.reserve(tenant, "resp_ab12-1", turn(300), STILL)
    await one.reserve(tenant, "resp_cd34-1", turn(100), STILL)
    for limiter in (dead, one):
        await limiter._settle_up()
    for limiter in (one, other):
        limiter.died("gw_ab12")
    for limiter in (one, other, one):
        await limiter._settle_up()
    assert left(await one.read(tenant, STILL)) == 900
    dead.returned()
    await dead._keep_up()
    assert left(await one.read(tenant, STILL)) == 600
    assert left(await dead.settle(reservation, used(50))) == 850


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_lost_turn_is_charged_once_whether_or_not_it_is_still_held(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    monkeypatch.setattr(dead_gateways, "GRACE", 0.0)
    dead, limiter, tenant = limiter_over(redis), limiter_over(redis), new_tenant()
    await dead.reserve(tenant, "resp_ef56-1", turn(300), STILL)
    if noticed:
        await dead._settle_up()
        limiter.died("gw_ef56")
        await limiter._settle_up()
    for _ in range(2):
        await limiter.charge_lost(tenant, Charge("resp_ef56-1", used(120), STILL))
        await later(redis, tenant, 5 * LEASE)
    assert left(await limiter.read(tenant, STILL)) == 880


async def test_what_a_gateway_charged_late_is_not_charged_again_by_whoever_takes_over_its_journal(redis: Redis) -> None:
    """Minutes after that: it was taken and ended without Redis, and its gateway died before the journal was empty."""
    dead, limiter, tenant = limiter_over(redis), limiter_over(redis), new_tenant()
    assert await dead._call("charge", tenant, "resp_ef56-1", used(120), STILL) is not None
    await later(redis, tenant, 5 * LEASE)
    await limiter.charge_lost(tenant, Charge("resp_ef56-1", used(120), STILL))
    assert left(await limiter.read(tenant, STILL)) == 880


@pytest.mark.parametrize("settled", [True, False])
async def test_a_turn_that_ended_before_its_gateway_died_is_charged_once(redis: Redis, settled: bool) -> None:
    """By its gateway, or by the one that finds it in the journal because Redis was away when it ended."""
    dead, limiter, tenant = limiter_over(redis), limiter_over(redis), new_tenant()
    reservation = await dead.reserve(tenant, "resp_ef56-1", turn(300), STILL)
    if settled:
        await dead.settle(reservation, used(120))
    for _ in range(2):
        await limiter.charge_lost(tenant, Charge("resp_ef56-1", used(120), STILL, if_held=True))
        await later(redis, tenant, 5 * LEASE)
    assert left(await limiter.read(tenant, STILL)) == 880


async def test_a_turn_longer_than_its_lease_keeps_what_it_holds(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    reservation = await limiter.reserve(tenant, "long", turn(400), STILL)
    for _ in range(4):
        await later(redis, tenant, 0.5 * LEASE)
        await limiter.renew()
    assert left(await limiter.read(tenant, STILL)) == 600
    await later(redis, tenant, 1.1 * LEASE)
    assert left(await limiter.read(tenant, STILL)) == 1000, "its gateway slept"
    await limiter.renew()
    assert left(await limiter.read(tenant, STILL)) == 600, "and is back"
    assert left(await limiter.settle(reservation, used(150))) == 850


async def test_the_lease_is_renewed_in_the_background(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter_module, "_CATCH_UP", 0.01)
    passed, tenant = 0.0, new_tenant()
    limiter = Limiter(redis, Settings(), gateways=lambda: 1, clock=lambda: passed)
    await limiter.start()
    await limiter.reserve(tenant, "long", turn(400), STILL)
    leases = keys(tenant)[2]
    for _ in range(3):
        [(_, end)] = await redis.zrange(leases, 0, -1, withscores=True)
        await later(redis, tenant, 0.5 * LEASE)
        passed += 0.5 * LEASE  # last: the lease is renewed once for it
        async with asyncio.timeout(30):
            while (await redis.zscore(leases, "long") or 0) < end:  # noqa: ASYNC110  Redis has no event
                await asyncio.sleep(0.005)
    assert left(await limiter.read(tenant, STILL)) == 600
    await limiter.aclose()


async def test_reservations_that_redis_has_lost_are_held_again(redis: Redis) -> None:
    """As after a fail-over to a replica that lags: each is held once, and charged once."""
    limiter, tenant = limiter_over(redis), new_tenant()
    kept = await limiter.reserve(tenant, "kept", turn(100), STILL)
    before = await remember(redis)
    lost = await limiter.reserve(tenant, "lost", turn(300), STILL)
    await lose_since(redis, before)
    assert left(await limiter.read(tenant, STILL)) == 900
    for _ in range(2):
        await limiter.renew()
        await limiter.catch_up()
    assert left(await limiter.read(tenant, STILL)) == 600
    await limiter.settle(lost, used(200))
    await limiter.settle(kept, used(50))
    assert left(await limiter.read(tenant, STILL)) == 750
    await limiter.aclose()


async def test_a_redis_that_was_away_is_asked_at_once_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server may answer by now: leases are renewed long before they would end."""
    monkeypatch.setattr(limiter_module, "_CATCH_UP", 0.01)
    server, tenant = redis_server(), new_tenant()
    with server as url:
        async with Redis.from_url(url, retry=Retry(NoBackoff(), 0)) as redis:
            limiter = limiter_over(redis)
            await limiter.start()
            await limiter.reserve(tenant, "lost", turn(300), STILL)
            server.stop()
            await limiter.read(tenant, STILL)
            server.start()
            async with asyncio.timeout(20):
                while not await redis.zscore(keys(tenant)[2], "lost"):  # noqa: ASYNC110  Redis has no event
                    await asyncio.sleep(0.01)
            await limiter.aclose()


async def test_open_sockets_are_counted_over_all_gateways(redis: Redis) -> None:
    gateways, tenant = [limiter_over(redis), limiter_over(redis)], new_tenant()
    subjects = (LimitSubject("tenant", Quota(open_sockets=2)),)
    first = await gateways[0].reserve(tenant, "s1", Amounts(sockets=1), subjects)
    await gateways[1].reserve(tenant, "s2", Amounts(sockets=1), subjects)
    with pytest.raises(RateLimited) as caught:
        await gateways[0].reserve(tenant, "s3", Amounts(sockets=1), subjects)
    assert caught.value.code == "too_many_connections"
    await gateways[0].settle(first, Amounts())
    await gateways[1].reserve(tenant, "s3", Amounts(sockets=1), subjects)


async def test_the_script_is_loaded_again_after_a_restart_of_redis(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    await limiter.reserve(tenant, "t1", turn(1), STILL)
    await redis.script_flush()
    assert not (await limiter.reserve(tenant, "t2", turn(1), STILL)).local


async def test_without_redis_turns_are_limited_to_this_gateways_share() -> None:
    """Two gateways: half of what is left; afterwards Redis is told what was used."""
    halves = (LimitSubject("tenant", Quota(output_tokens_per_minute=2, burst_seconds=30_000)),)
    server = redis_server()
    with server as url:
        client = Redis.from_url(url, socket_timeout=20, socket_connect_timeout=20)
        limiter = limiter_over(client, gateways=2)
        await limiter.settle(await limiter.reserve("acme", "t0", turn(400), halves), used(400))
        running = await limiter.reserve("acme", "t1", turn(100), halves)
        server.stop()
        reservation = await limiter.reserve("acme", "t2", turn(200), halves)
        assert reservation.local
        with pytest.raises(RateLimited):
            await limiter.reserve("acme", "t3", turn(1), halves)
        await limiter.settle(reservation, used(30))
        assert left(await limiter.settle(running, used(20))) == 250
        server.start()
        limiter._breaker = limiter_over(client)._breaker
        await limiter.catch_up()
        assert left(await limiter.read("acme", halves)) == 970, "Redis came back empty, and knows of the second only"
        assert not limiter._books
        await client.aclose()


async def test_what_was_granted_without_redis_is_held_there_before_it_grants_more(redis: Redis) -> None:
    """One moment without an answer, and no token more than the limit."""
    limiter, tenant = limiter_over(redis), new_tenant()
    await limiter.reserve(tenant, "t1", turn(500), STILL)
    script = limiter._script
    broken = Redis.from_url("unix:///nonexistent/redis.sock")
    limiter._script = broken.register_script("return 1")
    away = await limiter.reserve(tenant, "t2", turn(400), STILL)
    assert away.local
    limiter._script = script
    with pytest.raises(RateLimited):
        await limiter.reserve(tenant, "t3", turn(200), STILL)
    assert left(await limiter.settle(away, used(100))) == 400
    assert left(await limiter_over(redis).read(tenant, STILL)) == 400
    await broken.aclose()


async def test_without_redis_turns_are_refused_if_the_limits_say_so() -> None:
    server = redis_server()
    with server as url:
        client = Redis.from_url(url, socket_timeout=20, socket_connect_timeout=20)
        limiter = limiter_over(client, on_redis_down="deny")
        server.stop()
        with pytest.raises(Unavailable):
            await limiter.reserve("acme", "t1", turn(1), STILL)
        await client.aclose()


async def test_what_could_not_be_settled_is_settled_when_redis_is_back(redis: Redis) -> None:
    limiter, tenant = limiter_over(redis), new_tenant()
    first = await limiter.reserve(tenant, "t1", turn(500), STILL)
    second = await limiter.reserve(tenant, "t2", turn(100), STILL)
    script = limiter._script
    broken = Redis.from_url("unix:///nonexistent/redis.sock")
    limiter._script = broken.register_script("return 1")
    await limiter.settle(first, used(10))
    refused = await limiter.reserve(tenant, "t3", turn(50), STILL)
    await limiter.settle(refused, used(5))
    limiter._script = script
    await limiter.settle(second, used(20))
    await limiter.catch_up()
    assert left(await limiter.read(tenant, STILL)) == 965
    await broken.aclose()


def test_every_key_is_documented() -> None:
    documented = Path("docs/redis-keys.md").read_text("utf-8")
    for key in (STATE_KEY, HELD_KEY, LEASES_KEY):
        assert f"`{key.format(tenant='<tenant>')}`" in documented
    assert f"`{RELEASED_KEY.format(id='<gateway id>')}`" in documented
