"""Work beside the turns, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from cache.statistics import CacheCounter, read
from gateway import background
from gateway.access.identity.last_used import LastUsed, last_used
from gateway.background import BackgroundTasks, Kept, Periodic, cancel
from gateway.safety.hook import Finding
from gateway.safety.violations import KEY, Violation, Violations
from tests.conftest import redis_server

pytestmark = pytest.mark.anyio


async def test_work_is_done_at_once_and_again_until_it_is_closed() -> None:
    done: list[str] = []
    thrice = asyncio.Event()

    async def work() -> None:
        done.append("work")
        if len(done) == 3:
            thrice.set()

    async def at_end() -> None:
        done.append("end")

    each = Periodic("test", work, 0.001, at_end=at_end)
    await each.start()
    await thrice.wait()
    await each.aclose()
    assert done[:3] == ["work"] * 3
    assert done.count("end") == 1
    assert done[-1] == "end"


async def test_closing_waits_for_no_pause() -> None:
    each = Periodic("test", lambda: asyncio.sleep(0), 3600)
    await each.start()
    async with asyncio.timeout(20):
        await each.aclose()


async def test_work_that_is_done_once_is_waited_for_and_then_cancelled() -> None:
    done = asyncio.Event()
    tasks = BackgroundTasks("test")
    tasks.begin(cast(Coroutine[Any, Any, None], done.wait()))
    asyncio.get_running_loop().call_later(0.01, done.set)
    async with asyncio.timeout(20):
        await tasks.wait(3600)
        assert done.is_set()
        endless = tasks.begin(asyncio.sleep(3600))
        await tasks.aclose()
    assert endless.cancelled()
    assert len(tasks) == 0


async def test_what_was_never_started_can_be_closed() -> None:
    await Periodic("test", lambda: asyncio.sleep(0), 1).aclose()


@pytest.mark.parametrize("fault", [LookupError("a fault"), None], ids=["raises", "returns"])
async def test_work_that_is_kept_is_begun_again_whenever_it_ends(
    fault: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it raises is counted."""
    monkeypatch.setattr(background, "FIRST_PAUSE", 0.001)
    counted: list[str] = []
    background.observe_failure.set(counted.append)
    begun, thrice = 0, asyncio.Event()

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 3:
            thrice.set()
            await asyncio.Event().wait()
        if fault is not None:
            raise fault

    each = Kept("inbox", work)
    await each.start()
    async with asyncio.timeout(20):
        await thrice.wait()
    await each.aclose()
    assert (begun, counted) == (3, ["inbox"] * 2 if fault is not None else [])


async def test_a_fault_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    again = asyncio.Event()

    async def work() -> None:
        if caplog.records:
            again.set()
        raise LookupError("a fault")

    each = Periodic("the work", work, 0.001)
    await each.start()
    await again.wait()
    await each.aclose()
    assert caplog.records[0].work == "the work"  # type: ignore[attr-defined]
    assert "LookupError" in caplog.text


@pytest.mark.parametrize("when", ["work", "at_end"])
async def test_what_never_ends_is_cut_short(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PATIENCE", 0.01)
    begun, cut = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    async def nothing() -> None:
        pass

    each = Periodic("test", hang if when == "work" else nothing, 0.001, at_end=hang)
    await each.start()
    if when == "work":
        await begun.wait()
    async with asyncio.timeout(20):
        await each.aclose()
    assert cut.is_set()


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    swallowed = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await cancel([task])
    assert swallowed.is_set()
    assert task.cancelled()


async def test_closing_flushes_what_was_counted(redis_url: str) -> None:
    async with Redis.from_url(redis_url) as redis:
        await redis.flushdb()
        statistics, violations, used = CacheCounter(redis), Violations(redis), LastUsed(redis, clock=lambda: 1e9)
        parts = [
            Periodic("cache statistics", statistics.flush, 3600, at_end=statistics.flush),
            Periodic("violations", violations.flush, 3600, at_end=violations.flush),
            used,
        ]
        for part in parts:
            await part.start()
        await asyncio.sleep(0)  # their first flush finds nothing
        statistics.add("acme", "exact_hit", 7)
        violations.add(Violation(Finding("email", "flag", "input", "0" * 32), "acme", "key", "resp"))
        used.touch("acme", "key")
        for part in parts:
            await part.aclose()
        assert (await read(redis))["acme"]["exact_hit"] == 7
        assert await redis.xlen(KEY.format(tenant="acme")) == 1
        assert await last_used(redis, "acme", ["key"]) == {"key": 1_000_000_000}


async def test_closing_ends_while_redis_hangs() -> None:
    with redis_server() as url:
        async with Redis.from_url(url) as other, Redis.from_url(url, socket_timeout=0.05) as redis:
            statistics = CacheCounter(redis)
            each = Periodic("cache statistics", statistics.flush, 0.001, at_end=statistics.flush)
            await each.start()
            await other.client_pause(3_600_000)
            statistics.add("acme", "exact_hit")
            async with asyncio.timeout(20):
                await each.aclose()
