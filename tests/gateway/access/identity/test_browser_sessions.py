"""Browser sessions against a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import msgspec
import pytest
from redis.asyncio import Redis

from gateway.access.identity import Principal
from gateway.access.identity.browser_sessions import (
    INDEX_KEY,
    MOST_OF_PERSON,
    PERSON_KEY,
    SESSION_KEY,
    BrowserSessions,
    digest_of,
)
from gateway.access.identity.principal import SCOPES
from gateway.config.identity import IdentitySettings
from gateway.errors import Unauthorized, Unavailable
from gateway.storage.seal import Seal
from tests.gateway.conftest import eventually

pytestmark = pytest.mark.anyio

ANN = Principal("acme", "token:idp", "ann", SCOPES, operator=True)


def sessions(redis: Redis, secret: bytes = bytes(32), **settings: float) -> BrowserSessions:
    return BrowserSessions(redis, Seal(secret), IdentitySettings(**settings))


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        await client.flushdb()
        yield client


async def begin(some: BrowserSessions, who: Principal = ANN) -> str:
    """Begin a session; returns the digest of its id."""
    id, _ = await some.begin(who)
    return digest_of(id)


async def test_a_session_is_who_has_signed_in_at_every_gateway(redis: Redis) -> None:
    here, there = sessions(redis), sessions(redis)
    id, seconds = await here.begin(ANN)
    digest = digest_of(id)
    found = await there.find(digest)
    assert found.expires_at is not None and abs(found.expires_at - time.time() - seconds) < 60
    assert found == msgspec.structs.replace(ANN, session=digest, expires_at=found.expires_at)


async def test_redis_holds_neither_the_id_nor_who_it_is(redis: Redis) -> None:
    id, _ = await sessions(redis).begin(ANN)
    assert len(id) >= 43
    for key in await redis.keys("*"):
        value = await redis.dump(key)
        assert not any(word in key + value for word in (id.encode(), b"ann", b"acme", b"token:idp"))
        assert await redis.ttl(key) > 0


async def test_a_session_that_is_ended_is_none(redis: Redis) -> None:
    some = sessions(redis)
    digest = await begin(some)
    await some.end(digest)
    with pytest.raises(Unauthorized) as caught:
        await some.find(digest)
    assert caught.value.code == "session_ended"


@pytest.mark.parametrize("value", [b"", b"x" * 60, None])
async def test_what_was_not_sealed_here_is_none(redis: Redis, value: bytes | None) -> None:
    """Nor a session that was moved to another id, or was sealed with another secret."""
    some = sessions(redis)
    digest = await begin(some)
    sealed = await redis.get(SESSION_KEY.format(digest=digest))
    other = digest_of("other")
    await redis.set(SESSION_KEY.format(digest=other), sealed if value is None else value)
    with pytest.raises(Unauthorized):
        await some.find(other)
    with pytest.raises(Unauthorized):
        await sessions(redis, b"another secret").find(digest)


async def test_using_a_session_puts_its_end_off(redis: Redis) -> None:
    some = sessions(redis, session_idle=100.0, session_lifetime=1000.0)
    digest = await begin(some)
    key = SESSION_KEY.format(digest=digest)
    assert 0 < await redis.ttl(key) <= 100
    await redis.expire(key, 5)
    await some.find(digest)
    assert 5 < await redis.ttl(key) <= 100


async def test_a_session_ends_after_its_lifetime_however_much_it_is_used(redis: Redis) -> None:
    now = [time.time()]
    some = BrowserSessions(
        redis, Seal(bytes(32)), IdentitySettings(session_idle=1000.0, session_lifetime=1500.0), clock=lambda: now[0]
    )
    digest = await begin(some)
    now[0] += 1400
    await some.find(digest)
    assert await redis.ttl(SESSION_KEY.format(digest=digest)) <= 100
    now[0] += 101
    with pytest.raises(Unauthorized):
        await some.find(digest)


async def test_of_one_person_the_oldest_ends_when_one_more_begins(redis: Redis) -> None:
    """Of this one only."""
    now = [time.time()]
    some = BrowserSessions(redis, Seal(bytes(32)), IdentitySettings(), clock=lambda: now[0])
    other = await begin(some, msgspec.structs.replace(ANN, user="bob"))
    digests = []
    for _ in range(MOST_OF_PERSON + 1):
        now[0] += 1
        digests.append(await begin(some))
    with pytest.raises(Unauthorized):
        await some.find(digests[0])
    for digest in (*digests[1:], other):
        await some.find(digest)
    assert len(await redis.keys("rh1:session:*")) == await redis.zcard(INDEX_KEY) == MOST_OF_PERSON + 1


async def test_a_session_that_could_not_be_ended_is_ended_by_the_next_one_that_begins(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis may go away in the middle of a sign-in."""
    now = [time.time()]
    some = BrowserSessions(redis, Seal(bytes(32)), IdentitySettings(), clock=lambda: now[0])
    first = await begin(some)
    for _ in range(MOST_OF_PERSON - 1):
        now[0] += 1
        await begin(some)
    with monkeypatch.context() as patch:
        patch.setattr(redis, "delete", AsyncMock(side_effect=ConnectionError))
        with pytest.raises(Unavailable):
            await begin(some)
    now[0] += 1
    await begin(some)
    with pytest.raises(Unauthorized):
        await some.find(first)


async def test_sessions_are_listed_newest_first_until_they_end(redis: Redis) -> None:
    """However they ended; the list forgets those that began a whole life before."""
    now = [1000.0]
    some = BrowserSessions(redis, Seal(bytes(32)), IdentitySettings(session_lifetime=500), clock=lambda: now[0])
    digests = []
    for number in range(5):
        now[0] += 10
        digests.append(await begin(some, Principal("acme", "token:idp", f"user-{number}")))
    await some.end(digests[1])
    await redis.delete(SESSION_KEY.format(digest=digests[3]))
    listed = [(began, principal) async for began, principal in some.newest()]
    assert [began for began, _ in listed] == [1050, 1030, 1010]
    assert [principal.user for _, principal in listed] == ["user-4", "user-2", "user-0"]
    assert [principal.session for _, principal in listed] == [digests[4], digests[2], digests[0]]
    assert await some.read(digests[4]) == listed[0][1]
    assert await some.read(digests[3]) is None
    now[0] += 485
    await begin(some)
    assert await redis.zrange(INDEX_KEY, 0, 0) == [digests[3].encode()]


async def test_whoever_watches_is_told_of_the_end_and_of_no_other(redis: Redis) -> None:
    """Also if another gateway ended it."""
    some = sessions(redis)
    ended, kept = await begin(some), await begin(some)
    told: list[str] = []
    await some.start()
    try:
        with some.watching(ended, lambda: told.append("ended")), some.watching(kept, lambda: told.append("kept")):
            with some.watching(ended, lambda: told.append("gone")):
                pass
            await sessions(redis).end(ended)
            await eventually(lambda: bool(told))
            assert set(told) == {"ended"}
    finally:
        await some.aclose()
    assert some._open == {}


async def test_without_redis_nobody_signs_in_or_is_known() -> None:
    async with Redis.from_url("unix:///nonexistent/redis.sock") as client:
        some = sessions(client)
        for attempt in (some.begin(ANN), some.find("x"), some.end("x"), some.read("x"), anext(some.newest())):
            with pytest.raises(Unavailable):
                await attempt
        with some.watching("x", lambda: pytest.fail("it has not ended")):
            await some._look()
            await asyncio.sleep(0)


def test_the_keys_are_documented() -> None:
    page = Path("docs/redis-keys.md").read_text("utf-8")
    for key in (SESSION_KEY, PERSON_KEY, INDEX_KEY):
        assert f"`{key.format(digest='<digest>')}`" in page
