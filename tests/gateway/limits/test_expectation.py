"""What is learnt of answers' lengths: close to the truth, shared by gateways, and used for reservations."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.limits.expectation import ENOUGH, KEY, Expectations, bucket, quantile

_tenants = itertools.count()


@given(st.lists(st.integers(0, 100_000), min_size=ENOUGH, max_size=300), st.sampled_from([0.5, 0.9, 0.95, 1.0]))
def test_it_is_never_below_the_true_quantile_and_little_above(lengths: list[int], part: float) -> None:
    true = sorted(lengths)[math.ceil(part * len(lengths)) - 1]
    learnt = quantile(Counter(map(bucket, lengths)), part)
    assert learnt is not None and true <= learnt <= max(1, 1.2 * true + 1)


def test_little_knowledge_is_none() -> None:
    assert quantile(Counter({5: ENOUGH - 1}), 0.95) is None


@pytest.mark.anyio
async def test_gateways_learn_from_each_other(redis_url: str) -> None:
    tenant = f"learning-{next(_tenants)}"
    client = Redis.from_url(redis_url)
    here, there = Expectations(client), Expectations(client)
    for _ in range(ENOUGH // 2):
        here.observe(tenant, "small", 30)
        there.observe(tenant, "small", 90)
    assert here.expected(tenant, "small", 0.95) is None
    await there.exchange()
    await here.exchange()
    assert (here.expected(tenant, "small", 0.95), here.expected(tenant, "small", 0.5)) == (91, 32)
    assert here.expected(tenant, "large", 0.95) is None
    for key in await client.keys(KEY.format(tenant=tenant, day="*")):
        assert 0 < await client.ttl(key) <= 2 * 86_400
    await client.aclose()


@pytest.mark.anyio
async def test_days_before_yesterday_do_not_count(redis_url: str) -> None:
    tenant, now = f"learning-{next(_tenants)}", [1_795_348_800.0]
    client = Redis.from_url(redis_url)
    learning = Expectations(client, clock=lambda: now[0])
    for _ in range(ENOUGH):
        learning.observe(tenant, "small", 30)
    await learning.exchange()
    now[0] += 86_400
    for _ in range(2):
        assert learning.expected(tenant, "small", 0.95) == 32
        await learning.exchange()
    now[0] += 86_400
    learning.observe(tenant, "small", 1)
    await learning.exchange()
    assert learning.expected(tenant, "small", 0.95) is None
    await client.aclose()


@pytest.mark.anyio
async def test_nothing_is_forgotten_while_redis_is_away() -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    learning = Expectations(client)
    for _ in range(ENOUGH):
        learning.observe("acme", "small", 30)
    with pytest.raises((RedisError, OSError)):
        await learning.exchange()
    assert learning.expected("acme", "small", 0.95) == 32
    await client.aclose()


@pytest.mark.anyio
async def test_what_others_have_learnt_is_read_when_redis_is_back(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = f"learning-{next(_tenants)}"
    async with Redis.from_url(redis_url) as client:
        here, there = Expectations(client), Expectations(client)
        for _ in range(ENOUGH):
            there.observe(tenant, "small", 30)
        await there.exchange()
        assert here.expected(tenant, "small", 0.95) is None
        with monkeypatch.context() as patch:
            patch.setattr(client, "pipeline", Mock(side_effect=ConnectionError))
            with pytest.raises(ConnectionError):
                await here.exchange()
        assert here.waiting
        await here.exchange()
        assert here.expected(tenant, "small", 0.95) == 32
