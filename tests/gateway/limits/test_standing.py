"""Where limits stand, read beside the limiter that counts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.limits.script import keys
from gateway.limits.standing import standings
from gateway.limits.subjects import every_subject
from gateway.records.directory import Key, Tenant
from gateway.records.quota import Amounts, LimitSubject, Quota
from tests.gateway.limits.test_limiter import limiter_over, new_tenant

pytestmark = pytest.mark.anyio

QUOTA = Quota(
    requests_per_minute=2, output_tokens_per_minute=4, burst_seconds=86_400, concurrent_turns=3, spend_per_day=1000
)
SUBJECTS = (LimitSubject("tenant", QUOTA), LimitSubject("key:ci", Quota(spend_per_month=500)))


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        yield client


async def test_used_and_held_are_told_apart(redis: Redis) -> None:
    """And what is left is what the limiter says; looking changes nothing in Redis."""
    limiter, tenant = limiter_over(redis), new_tenant()
    done = await limiter.reserve(tenant, "t1", Amounts(requests=1, turns=1, output_tokens=50, spend=60), SUBJECTS)
    await limiter.settle(done, Amounts(output_tokens=30, spend=40))
    await limiter.reserve(tenant, "t2", Amounts(requests=1, turns=1, output_tokens=500, spend=700), SUBJECTS[:1])
    before = await redis.hgetall(keys(tenant)[0])  # type: ignore[misc]
    found = (await standings(redis, {tenant: SUBJECTS, "nobody": ()}, 0.7))[tenant]
    assert await redis.hgetall(keys(tenant)[0]) == before  # type: ignore[misc]
    shown = {(each.subject, each.limit): (each.used, each.held, each.most) for each in found}
    assert shown == {
        ("tenant", "requests_per_minute"): (2, 0, 2880),
        ("tenant", "output_tokens_per_minute"): (30, 500, 5760),
        ("tenant", "concurrent_turns"): (1, 0, 3),
        ("tenant", "spend_per_day"): (40, 700, 1000),
        ("key:ci", "spend_per_month"): (40, 0, 500),
    }
    left = {reading.name: reading.remaining for reading in (await limiter.read(tenant, SUBJECTS)).readings}
    assert {each.limit: each.left for each in found} == left
    by_limit = {each.limit: each for each in found}
    assert by_limit["concurrent_turns"].reset_seconds is None
    midnight = 86_400 - time.time() % 86_400
    assert by_limit["spend_per_day"].reset_seconds == pytest.approx(midnight, abs=30)
    assert [each.limit for each in found if each.warning] == ["spend_per_day"]


async def test_what_was_never_used_is_all_left(redis: Redis) -> None:
    (each,) = (await standings(redis, {new_tenant(): SUBJECTS[1:]}, 0.8)).popitem()[1]
    assert (each.used, each.held, each.left, each.warning) == (0, 0, 500, False)
    assert await standings(redis, {}, 0.8) == {}


def test_every_limited_thing_of_a_tenant_is_a_subject() -> None:
    """Keys of one rotation together, what has no limit not at all."""
    limit, none = Quota(requests_per_minute=1), Quota(burst_seconds=5)
    tenant = Tenant(name="acme", model_quotas={"llama": limit, "free": none}, adapter_quotas={"pirate": limit})
    made = [
        Key(id="old", tenant="acme", digest="0" * 64, quota=limit),
        Key(id="new", tenant="acme", digest="1" * 64, quota=limit, counts_as="old"),
        Key(id="open", tenant="acme", digest="2" * 64),
    ]
    names = [subject.name for subject in every_subject(Quota(concurrent_turns=2), tenant, made)]
    assert names == ["tenant", "key:old", "model:llama", "adapter:pirate"]
    assert every_subject(Quota(), Tenant(name="free"), []) == ()
