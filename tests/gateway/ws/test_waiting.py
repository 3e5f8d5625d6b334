"""Small events and queues, held against asyncio's own."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ws.waiting import Event, Queue

pytestmark = pytest.mark.anyio

STEPS = st.lists(st.sampled_from(["put", "get", "cancel", "run"]), max_size=30)


async def test_an_event_wakes_who_waits_and_stays_set_until_it_is_cleared() -> None:
    event = Event()
    waiting = asyncio.create_task(event.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    event.set()
    await waiting
    await event.wait()
    event.clear()
    assert not event.is_set()


async def test_a_wait_that_is_cancelled_leaves_room_for_the_next() -> None:
    event = Event()
    first = asyncio.create_task(event.wait())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(event.wait())
    await asyncio.sleep(0)
    event.set()
    await second


async def test_two_tasks_may_not_wait_for_the_same_event() -> None:
    event = Event()
    first = asyncio.create_task(event.wait())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="another task"):
        await event.wait()
    event.set()
    await first


@given(STEPS)
def test_a_queue_gives_what_asyncios_own_gives(steps: list[str]) -> None:
    async def play(queue: Queue[int] | asyncio.Queue[int]) -> list[object]:
        seen: list[object] = []
        reader: asyncio.Task[int] | None = None
        number = 0
        for step in steps:
            match step:
                case "put":
                    queue.put_nowait(number)
                    number += 1
                case "get" if reader is None:
                    reader = asyncio.create_task(queue.get())
                case "cancel" if reader is not None:
                    reader.cancel()
                case "run":
                    for _ in range(3):
                        await asyncio.sleep(0)
            if reader is not None and reader.done():
                seen.append("cancelled" if reader.cancelled() else reader.result())
                reader = None
            seen.append(queue.empty())
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        return seen

    assert asyncio.run(play(Queue())) == asyncio.run(play(asyncio.Queue()))
