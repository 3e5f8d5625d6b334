"""Embeddings of questions that come again: from the process, from Redis, from the real embedder."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import numpy as np
import pytest
from redis.asyncio import Redis

from cache.embedding.client import EmbedderClient
from cache.embedding.store import Embeddings
from cache.semantic.keys import embeddings_key
from tests.cache.embedding.test_embedder import connected
from tests.embedder import EmbedderProcess

pytestmark = pytest.mark.anyio

KEY = b"secret"


@contextlib.asynccontextmanager
async def embeddings(redis: Redis, client: EmbedderClient) -> AsyncIterator[Embeddings]:
    made = Embeddings(client, redis)
    try:
        yield made
    finally:
        await made.aclose()


async def test_a_question_is_embedded_once(redis: Redis, embedder: EmbedderProcess) -> None:
    """Whoever asks afterwards gets the very same numbers, from nearby or, in another process, from Redis."""
    async with connected(embedder.socket) as client:
        async with embeddings(redis, client) as one:
            first = await one.of("acme", "hello", secret=KEY, seconds=30)
            again = await one.of("acme", "hello", secret=KEY, seconds=30)
        async with embeddings(redis, client) as other:
            elsewhere = await other.of("acme", "hello", secret=KEY, seconds=30)
    assert first is not None
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, elsewhere)
    assert dict(one.sources) == {"embedder": 1, "process": 1} and dict(other.sources) == {"redis": 1}
    [key] = await redis.keys("rh1:emb:{acme}:*")
    assert 0 < await redis.ttl(key) <= 86_400 and await redis.strlen(key) == 2 * 384
    assert b"hello" not in key


async def test_tenants_share_nothing(redis: Redis, embedder: EmbedderProcess) -> None:
    """Whether somebody else has asked does not show in how long it takes."""
    async with connected(embedder.socket) as client, embeddings(redis, client) as store:
        await store.of("acme", "hello", secret=b"a", seconds=30)
        await store.of("other", "hello", secret=b"b", seconds=30)
        assert dict(store.sources) == {"embedder": 2}


async def test_rubbish_in_redis_is_computed_anew(redis: Redis, embedder: EmbedderProcess) -> None:
    async with connected(embedder.socket) as client:
        async with embeddings(redis, client) as one:
            await one.of("acme", "hello", secret=KEY, seconds=30)
        [key] = await redis.keys("rh1:emb:*")
        await redis.set(key, b"rubbish")
        async with embeddings(redis, client) as other:
            assert await other.of("acme", "hello", secret=KEY, seconds=30) is not None
            assert dict(other.sources) == {"embedder": 1}


async def test_without_an_embedder_there_is_none(redis: Redis, tmp_path: Path) -> None:
    """At once."""
    async with embeddings(redis, EmbedderClient(tmp_path / "nowhere.sock")) as store:
        assert await store.of("acme", "hello", secret=KEY, seconds=30) is None


async def test_memory_of_redis_is_bounded_by_tenant(redis: Redis, embedder: EmbedderProcess) -> None:
    """By bytes, of which an embedding has 768; the oldest go first, and those that have ended count no more."""
    async with connected(embedder.socket) as client:
        for tenant, texts in (("acme", "abca"), ("other", "a")):
            for text in texts:
                store = Embeddings(client, redis, ttl=60, max_bytes=2 * 768 + 767)
                assert await store.of(tenant, text, secret=KEY, seconds=30) is not None
                await store.aclose()
                kept = await redis.keys(f"rh1:emb:{{{tenant}}}:*")
                index = embeddings_key(tenant)
                assert {key.rpartition(b":")[2] for key in kept} == set(await redis.zrange(index, 0, -1))
                assert 0 < await redis.pttl(index) <= 60_000
        # The last "a" was computed anew: the first one had made room.
        assert store.sources["embedder"] == 1
        assert len(await redis.keys("rh1:emb:{acme}:*")) == 2
        assert len(await redis.keys("rh1:emb:{other}:*")) == 1
        for member in await redis.zrange(embeddings_key("acme"), 0, -1):
            await redis.zadd(embeddings_key("acme"), {member: 1})
        store = Embeddings(client, redis, max_bytes=2 * 768 + 767)
        assert await store.of("acme", "d", secret=KEY, seconds=30) is not None
        await store.aclose()
        assert await redis.zcard(embeddings_key("acme")) == 1


async def test_a_fault_of_ours_in_storing_is_told(redis: Redis, embedder: EmbedderProcess) -> None:
    """And the question has its embedding."""
    told: list[type[BaseException] | None] = []
    async with connected(embedder.socket) as client:
        store = Embeddings(client, redis, on_fault=lambda: told.append(sys.exc_info()[0]))
        store._keep = AsyncMock(side_effect=LookupError)
        assert await store.of("acme", "hello", secret=KEY, seconds=30) is not None
        await store.aclose()
    assert told == [LookupError]


async def test_memory_is_bounded(redis: Redis, embedder: EmbedderProcess) -> None:
    async with connected(embedder.socket) as client:
        store = Embeddings(client, redis, capacity=2)
        for text in ("a", "b", "c"):
            await store.of("acme", text, secret=KEY, seconds=30)
        assert len(store._near) == 2
        await store.aclose()
