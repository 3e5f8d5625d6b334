"""The bucket's arithmetic in Python, and that it agrees with the script in Redis."""

from __future__ import annotations

import asyncio
import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.limits.bucket import LocalBucket
from gateway.limits.limiter import Limiter
from gateway.settings import Limits, Settings

_names = itertools.count()
STEPS = st.lists(
    st.tuples(st.sampled_from(["reserve", "settle"]), st.sampled_from("abc"), st.integers(0, 150)), max_size=20
)


@given(st.lists(st.tuples(st.integers(0, 120), st.floats(0, 30)), max_size=30))
def test_no_window_admits_more_than_burst_plus_refill(requests: list[tuple[int, float]]) -> None:
    bucket = LocalBucket(60, 100, now=0.0)
    now = granted = 0.0
    for number, (tokens, pause) in enumerate(requests):
        now += pause
        if bucket.reserve(str(number), tokens, now).granted:
            granted += tokens
        assert granted <= 100 + now + 1e-6


@given(st.integers(1, 100), st.integers(1, 10_000))
def test_after_the_wait_that_was_named_the_tokens_are_there(tokens: int, rate: int) -> None:
    bucket = LocalBucket(rate, 100, now=0.0)
    bucket.reserve("first", 100, 0.0)
    answer = bucket.reserve("second", tokens, 0.0)
    assert not answer.granted
    assert bucket.reserve("second", tokens, answer.wait + 0.001).granted


def test_a_clock_that_steps_back_gives_nothing_away() -> None:
    bucket = LocalBucket(60, 100, now=100.0)
    bucket.reserve("a", 100, 100.0)
    bucket.read(50.0)
    assert bucket.read(100.0).remaining == 0


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_the_script_in_redis_agrees(redis_url: str, steps: list[tuple[str, str, int]]) -> None:
    """Same operations, same grants, same tokens left (at a rate too slow to refill meanwhile)."""

    async def run() -> None:
        redis = Redis.from_url(redis_url)
        limiter = Limiter(redis, Settings(limits=Limits(tokens_per_minute=1, burst_tokens=100)))
        tenant = f"agree-{next(_names)}"
        local = LocalBucket(1, 100, now=0.0)
        for operation, turn, tokens in steps:
            remote = await limiter._call(operation, tenant, turn, tokens)
            mine = local.reserve(turn, tokens, 0.0) if operation == "reserve" else local.settle(turn, tokens, 0.0)
            assert remote is not None
            assert (remote.granted, remote.remaining) == (mine.granted, mine.remaining)
        await redis.aclose()

    asyncio.run(run())
