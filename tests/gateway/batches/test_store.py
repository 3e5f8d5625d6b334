"""Batches, their results and their queue in a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.access.identity import Principal
from gateway.batches import store as module
from gateway.batches.files import new_id
from gateway.batches.state import BatchDocument, BatchProgress, BatchStatus
from gateway.batches.store import BATCH_KEY, QUEUE_KEY, BatchStore
from gateway.config.batches import BatchSettings
from gateway.errors import Conflict, RateLimited
from gateway.protocol.stream import TokenUsage

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def store(redis_url: str, **settings: int) -> AsyncIterator[tuple[BatchStore, Redis]]:
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        yield BatchStore(redis, b"secret", BatchSettings(**settings)), redis


def made(tenant: str = "acme", **fields: Any) -> BatchDocument:
    whole: dict[str, Any] = {
        "id": new_id("batch_"),
        "principal": Principal(tenant, "ci"),
        "endpoint": "/v1/responses",
        "input_file_id": "file-1",
        "created_at": 1,
        "metadata": {"secret": "zanzibar"},
    }
    return BatchDocument(**whole | fields)


class TestDocuments:
    """One document per batch, changed by comparing and swapping."""

    async def test_a_batch_is_what_was_stored_and_nothing_of_it_is_in_clear(self, redis_url: str) -> None:
        async with store(redis_url) as (batches, redis):
            batch = made()
            await batches.create(batch)
            assert await batches.get("acme", batch.id) == batch
            assert await batches.get("other", batch.id) is None
            document = await redis.hgetall(BATCH_KEY.format(tenant="acme", id=batch.id))
            assert b"zanzibar" not in document[b"doc"]
            assert await redis.ttl(BATCH_KEY.format(tenant="acme", id=batch.id)) > 0

    async def test_only_one_of_two_changes_is_made(self, redis_url: str) -> None:
        """Who comes later with an older status changes nothing."""
        async with store(redis_url) as (batches, _):
            batch = made()
            await batches.create(batch)
            moves = [batches.move(batch, status, 5) for status in (BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING) * 3]
            done = await asyncio.gather(*moves)
            assert sum(done) == 1
            now = await batches.get("acme", batch.id)
            assert now is not None and now.times == {now.status: 5}

    async def test_pages_are_newest_first(self, redis_url: str) -> None:
        async with store(redis_url) as (batches, _):
            every = [made(created_at=number) for number in range(5)]
            for batch in every:
                await batches.create(batch)
            newest = every[::-1]
            assert await batches.page("acme", None, 2) == (newest[:2], True)
            assert await batches.page("acme", newest[1].id, 3) == (newest[2:], False)
            assert await batches.page("acme", "batch_x", 3) is None
            assert await batches.page("other", None, 3) == ([], False)


class TestOnce:
    """Idempotency keys."""

    async def test_the_same_request_makes_one_batch(self, redis_url: str) -> None:
        """Also at the same time; another caller's key is another one."""
        async with store(redis_url) as (batches, redis):
            made_now = [batches.create(made(created_at=number), "key") for number in range(4)]
            found = {batch.id for batch in await asyncio.gather(*made_now)}
            assert len(found) == len(await redis.hkeys(QUEUE_KEY)) == 1
            assert (await batches.create(made(), "other")).id not in found
            assert (await batches.create(made("acme2"), "key")).id not in found
            with pytest.raises(Conflict) as caught:
                await batches.create(made(endpoint="/v1/embeddings"), "key")
            assert caught.value.code == "idempotency_key_reused"

    async def test_one_that_was_refused_may_be_tried_again(self, redis_url: str) -> None:
        async with store(redis_url, max_unfinished_per_tenant=1) as (batches, _):
            first = await batches.create(made())
            with pytest.raises(RateLimited):
                await batches.create(made(), "key")
            await batches.queue.remove("acme", first.id)
            again = made()
            assert await batches.create(again, "key") == again

    async def test_one_that_was_cut_off_is_made_by_the_next_attempt(
        self, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with store(redis_url) as (batches, redis):
            first = made()
            with monkeypatch.context() as patch:
                patch.setattr(redis, "pipeline", lambda **_: 1 / 0)  # after it was queued
                with pytest.raises(ZeroDivisionError):
                    await batches.create(first, "key")
            assert [name.decode() for name in await redis.hkeys(QUEUE_KEY)] == [f"acme/{first.id}"]
            again = await batches.create(made(), "key")
            assert again.id == first.id and await batches.get("acme", first.id) == again
            assert len(await redis.hkeys(QUEUE_KEY)) == 1


class TestResults:
    """Results become files."""

    async def test_a_line_has_the_result_that_came_first(self, redis_url: str) -> None:
        """Whichever file the other one would have gone to; both are counted and read."""
        async with store(redis_url) as (batches, redis):
            batch = made(lines=4, total=4)
            await batches.create(batch)
            usage = TokenUsage(5, 2, 3)
            assert await batches.record(batch, 0, b"zero\n", usage, failed=False)
            assert not await batches.record(batch, 0, b"again\n", usage, failed=False)
            assert not await batches.record(batch, 0, b"worse\n", usage, failed=True)
            assert await batches.record(batch, 3, b"three\n", usage, failed=False)
            assert await batches.record(batch, 1, b"one\n", TokenUsage(), failed=True)
            assert await batches.written(batch) == {0, 1, 3}
            seen = await batches.get("acme", batch.id)
            assert seen is not None and seen.progress == BatchProgress(2, 1, 10, 4, 6)
            for _ in range(2):
                assert await batches.close(batch, 50) == (2, 1)
            assert await batches.written(batch) == {0, 1, 3}
            texts = {}
            for id in (batch.output_file_id, batch.error_file_id):
                file = await batches.files.get("acme", id)
                assert file is not None and file.created_at == 50
                texts[id] = b"".join([piece async for piece in batches.files.content("acme", file)])
            assert texts == {batch.output_file_id: b"zero\nthree\n", batch.error_file_id: b"one\n"}
            for key in await redis.keys("rh1:[^{]*"):
                assert await redis.ttl(key) > 0, key

    async def test_nothing_is_written_for_a_batch_that_is_gone(self, redis_url: str) -> None:
        async with store(redis_url) as (batches, redis):
            assert not await batches.record(made(), 0, b"zero\n", TokenUsage(), failed=False)
            assert await redis.keys("*") == []

    async def test_results_are_kept_as_long_as_the_batch_says(self, redis_url: str) -> None:
        async with store(redis_url) as (batches, redis):
            batch = made(lines=1, total=1, output_seconds=3600)
            await batches.create(batch)
            await batches.record(batch, 0, b"zero\n", TokenUsage(), failed=False)
            await batches.close(batch, 50)
            file = await batches.files.get("acme", batch.output_file_id)
            assert file is not None and file.expires_at == 3650
            assert 0 < await redis.ttl(f"rh1:file:{{acme}}:{file.id}") <= 3600


class TestQueue:
    """Which gateway runs which batch."""

    async def test_a_tenants_batches_are_one_gateways(self, redis_url: str) -> None:
        """Gateways share tenants, one with each call, the oldest first."""
        async with store(redis_url) as (batches, redis):
            queue, every = batches.queue, dict[str, list[str]]()
            for tenant in ("acme", "zoo", "acme", "bravo"):
                batch = made(tenant)
                every.setdefault(tenant, []).append(batch.id)
                await batches.create(batch)
                await asyncio.sleep(0.002)  # ids begin with the millisecond
            acme = {("acme", id) for id in every["acme"]}
            assert await queue.claim("one", 64) == acme
            assert await queue.claim("two", 64) == {("zoo", every["zoo"][0])}
            assert await queue.claim("two", 64) == {("zoo", every["zoo"][0]), ("bravo", every["bravo"][0])}
            assert await queue.claim("one", 64) == acme
            assert await queue.claim("three", 64) == set()
            later = made("acme")
            await batches.create(later)
            assert await queue.claim("three", 64) == set()
            assert ("acme", later.id) in await queue.claim("one", 64)
            assert await redis.ttl(QUEUE_KEY) == -1

    async def test_a_lease_ends_and_another_gateway_goes_on(
        self, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with store(redis_url) as (batches, _):
            batch = made()
            await batches.create(batch)
            monkeypatch.setattr(module, "LEASE", 0.05)
            assert await batches.queue.claim("one", 64) == {("acme", batch.id)}
            async with asyncio.timeout(10):
                while not await batches.queue.claim("two", 64):  # noqa: ASYNC110  only Redis knows
                    await asyncio.sleep(0.01)
            monkeypatch.setattr(module, "LEASE", 60)
            assert await batches.queue.claim("two", 64) == {("acme", batch.id)}
            assert await batches.queue.claim("one", 64) == set()

    async def test_a_gateway_that_ends_leaves_them_at_once(self, redis_url: str) -> None:
        async with store(redis_url) as (batches, _):
            batch = made()
            await batches.create(batch)
            await batches.queue.claim("one", 64)
            await batches.queue.release("other")
            assert await batches.queue.claim("two", 64) == set()
            await batches.queue.release("one")
            assert await batches.queue.claim("two", 64) == {("acme", batch.id)}
            await batches.queue.remove("acme", batch.id)
            assert await batches.queue.claim("two", 64) == set()

    async def test_a_gateway_has_no_more_than_it_can(self, redis_url: str) -> None:
        async with store(redis_url) as (batches, _):
            for _ in range(3):
                await batches.create(made())
            assert len(await batches.queue.claim("one", 2)) == 2
            assert len(await batches.queue.claim("one", 2)) == 2
            assert len(await batches.queue.claim("one", 3)) == 3

    async def test_a_tenant_has_so_many_that_have_not_ended(self, redis_url: str) -> None:
        """One that is refused leaves nothing behind."""
        async with store(redis_url, max_unfinished_per_tenant=1) as (batches, redis):
            await batches.create(made())
            await batches.create(made("acme2"))
            refused = made()
            with pytest.raises(RateLimited) as caught:
                await batches.create(refused)
            assert caught.value.code == "too_many_batches"
            assert await batches.get("acme", refused.id) is None
            page = await batches.page("acme", None, 10)
            assert page is not None and len(page[0]) == 1
            assert len(await redis.hkeys(QUEUE_KEY)) == 2
