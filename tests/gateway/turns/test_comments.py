"""What Redis keeps of comments. Who may write and read them is tested with the endpoints."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.turns import comments as module
from gateway.turns.comments import INDEX_KEY, KEY, LIFETIME, Comment, Comments
from tests.gateway.pipeline.sources.test_redis_keys import documented

pytestmark = pytest.mark.anyio

SECRET = "canary7f3a"
NOW = time.time_ns() // 1_000_000


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        yield redis


def comment(response: str, at: int = NOW) -> Comment:
    return Comment(response, at, "down", None, f"About {SECRET}.")


async def test_a_response_has_one_and_the_newest_comes_first(redis: Redis) -> None:
    comments = Comments(redis, b"secret")
    for number, response in enumerate(("a", "b", "a")):
        await comments.write("demo", comment(response, NOW + number))
    assert [(each.response, each.at - NOW) for each in await comments.of_tenant("demo")] == [("a", 2), ("b", 1)]
    await comments.remove("demo", "a")
    await comments.remove("demo", "unknown")
    assert await comments.find("demo", "a") is None
    assert [each.response for each in await comments.of_tenant("demo")] == ["b"]
    assert await comments.of_tenant("other") == []


async def test_the_oldest_go_when_there_are_too_many(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COMMENTS", 2)
    comments = Comments(redis, b"secret")
    for number in range(4):
        await comments.write("demo", comment(f"r{number}", NOW + number))
        assert await redis.zcard(INDEX_KEY.format(tenant="demo")) == await redis.hlen(KEY.format(tenant="demo"))  # type: ignore[misc]
    assert [each.response for each in await comments.of_tenant("demo")] == ["r3", "r2"]


async def test_they_end_after_a_while(redis: Redis) -> None:
    """Each by itself, whether or not another one comes."""
    comments = Comments(redis, b"secret")
    old = comment("old", NOW - 1000 * LIFETIME - 1)
    await comments.write("demo", old)
    assert await comments.find("demo", "old") is None
    assert await comments.of_tenant("demo") == []
    await comments.write("demo", comment("new"))
    assert await redis.hkeys(KEY.format(tenant="demo")) == [b"new"]  # type: ignore[misc]


async def test_they_are_sealed_for_their_tenant_and_response(redis: Redis) -> None:
    comments = Comments(redis, b"secret")
    await comments.write("demo", comment("a"))
    sealed = await redis.hget(KEY.format(tenant="demo"), "a")  # type: ignore[misc]
    assert sealed is not None and SECRET.encode() not in sealed
    await redis.hset(KEY.format(tenant="demo"), "b", sealed)  # type: ignore[misc]
    await redis.hset(KEY.format(tenant="other"), "a", sealed)  # type: ignore[misc]
    assert await comments.find("demo", "b") is await comments.find("other", "a") is None
    assert [each.response for each in await comments.of_tenant("demo")] == ["a"]
    assert await Comments(redis, b"another").find("demo", "a") is None


async def test_every_key_is_documented_and_ends_by_itself(redis: Redis) -> None:
    await Comments(redis, b"secret").write("demo", comment("a"))
    rows = documented()
    for key in (KEY.format(tenant="demo"), INDEX_KEY.format(tenant="demo")):
        kinds = [kind for pattern, kind, _ in rows if pattern.fullmatch(key)]
        assert kinds == [(await redis.type(key)).decode()]
        assert 0 < await redis.ttl(key) <= LIFETIME
