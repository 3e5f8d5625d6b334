"""One-time addresses against a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.access.identity import Principal
from gateway.access.identity.principal import LINK, SCOPES
from gateway.access.sign_in_links import COMMAND, LIFETIME, LINK_KEY, SignInLinks
from gateway.errors import Unauthorized, Unavailable

pytestmark = pytest.mark.anyio

OPERATOR = Principal("demo", LINK, scopes=SCOPES, operator=True)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        await client.flushdb()
        yield client


async def test_a_secret_signs_in_as_operator_once(redis: Redis) -> None:
    """The second time it says which command makes another one."""
    links = SignInLinks(redis)
    secret = await links.make()
    assert await links.redeem(secret, "demo") == OPERATOR
    with pytest.raises(Unauthorized, match=COMMAND) as caught:
        await links.redeem(secret, "demo")
    assert caught.value.code == "link_spent"


async def test_of_many_who_open_it_at_once_one_gets_in(redis: Redis) -> None:
    """On connections of their own, as several gateways have."""
    secret = await SignInLinks(redis).make()
    attempts = (SignInLinks(redis).redeem(secret, "demo") for _ in range(50))
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert outcomes.count(OPERATOR) == 1
    assert sum(isinstance(outcome, Unauthorized) for outcome in outcomes) == 49


async def test_redis_holds_the_digest_only_and_for_ten_minutes(redis: Redis) -> None:
    secret = await SignInLinks(redis).make()
    [key] = await redis.keys("*")
    assert secret.encode() not in key + await redis.get(key)
    assert 0 < await redis.ttl(key) <= LIFETIME == 600


@pytest.mark.parametrize("secret", ["", "x" * 43, "\ud7ff"])
async def test_an_invented_secret_is_refused(redis: Redis, secret: str) -> None:
    with pytest.raises(Unauthorized):
        await SignInLinks(redis).redeem(secret, "demo")


async def test_without_redis_there_are_none() -> None:
    async with Redis.from_url("unix:///nonexistent/redis.sock") as client:
        for attempt in (SignInLinks(client).make(), SignInLinks(client).redeem("x", "demo")):
            with pytest.raises(Unavailable):
                await attempt


def test_the_key_is_documented() -> None:
    assert f"`{LINK_KEY.format(digest='<digest>')}`" in Path("docs/redis-keys.md").read_text("utf-8")
