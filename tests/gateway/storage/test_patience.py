"""Time counts while the loop is free, and as `asyncio.timeout` counts it otherwise."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.storage.patience import Patience

pytestmark = pytest.mark.anyio


async def test_the_time_ends_for_those_who_wait_for_nothing() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with Patience(0.05):
            await asyncio.Event().wait()
    assert time.monotonic() - began >= 0.05
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_what_comes_while_the_loop_is_blocked_comes_in_time() -> None:
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    async with Patience(0.05):
        for _ in range(4):  # one part less than the time has
            loop.call_soon(time.sleep, 0.06)
            await asyncio.sleep(0.001)
        loop.call_soon(came.set)
        await came.wait()


async def test_none_waits_without_end_and_what_ends_in_time_is_left_alone() -> None:
    async with Patience(None):
        await asyncio.sleep(0.01)
    async with Patience(0.01):
        pass
    await asyncio.sleep(0.03)


async def test_a_task_that_is_cancelled_by_others_is_cancelled() -> None:
    async def waiting() -> None:
        async with Patience(60):
            await asyncio.Event().wait()

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_errors_within_are_theirs() -> None:
    with pytest.raises(KeyError):
        async with Patience(60):
            raise KeyError
