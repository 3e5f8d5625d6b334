"""Turns begin when they are due, whatever becomes of earlier ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from load.plan import PlannedTurn
from load.records import MeasuredTurn, TurnEnd
from load.run import OpenLoop
from tests.load.samples import measured, planned

pytestmark = pytest.mark.anyio


class Server:
    """Answers nothing until its gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun: list[int] = []

    async def run(self, turn: PlannedTurn, began: float) -> MeasuredTurn:
        self.begun.append(turn.number)
        await self.gate.wait()
        return measured(turn.start, number=turn.number)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_server_that_stands_still_delays_no_turn() -> None:
    server = Server()
    loop = OpenLoop(server.run)
    running = asyncio.create_task(loop.run(planned(number, number / 1000) for number in range(50)))
    await until(lambda: len(server.begun) == 50)
    assert (loop.in_flight, loop.turns) == (50, [])
    server.gate.set()
    assert sorted(each.plan.number for each in await running) == list(range(50))


async def test_no_turn_begins_before_it_is_due() -> None:
    begun: list[tuple[float, float]] = []

    async def run(turn: PlannedTurn, began: float) -> MeasuredTurn:
        begun.append((turn.start, loop.seconds))
        return measured(turn.start)

    loop = OpenLoop(run)
    await loop.run(planned(number, number / 100) for number in range(20))
    assert len(begun) == 20
    # Timers of the event loop are precise to a millisecond.
    assert all(at >= start - 0.0015 for start, at in begun)


async def test_a_stop_ends_arrivals_and_waits_for_those_that_run() -> None:
    server = Server()
    loop = OpenLoop(server.run)
    running = asyncio.create_task(loop.run([planned(0), planned(1), planned(2, 3600.0)]))
    await until(lambda: len(server.begun) == 2)
    loop.stop()
    server.gate.set()
    assert len(await running) == 2
    assert loop.stopped


async def test_a_second_stop_leaves_those_that_run() -> None:
    server = Server()
    loop = OpenLoop(server.run)
    running = asyncio.create_task(loop.run([planned(0), planned(1, 3600.0)]))
    await until(lambda: server.begun)
    loop.stop()
    loop.stop()
    assert await running == []


async def test_a_stop_after_the_last_arrival_leaves_those_that_run() -> None:
    server = Server()
    loop = OpenLoop(server.run)
    running = asyncio.create_task(loop.run([planned(0)]))
    await until(lambda: server.begun)
    await asyncio.sleep(0.01)
    loop.stop()
    assert await running == []
    assert not loop.stopped


async def test_a_run_without_hope_ends_early() -> None:
    async def run(turn: PlannedTurn, began: float) -> MeasuredTurn:
        return measured(turn.start, number=turn.number, end=TurnEnd.FAILED)

    loop = OpenLoop(run, lambda turn: turn.plan.number == 4)
    assert len(await loop.run([*(planned(number) for number in range(5)), planned(5, 3600.0)])) == 5
    assert loop.stopped


async def test_a_fault_of_ours_is_not_hidden() -> None:
    async def run(turn: PlannedTurn, began: float) -> MeasuredTurn:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        await OpenLoop(run).run([planned(0)])
    assert raised.group_contains(ZeroDivisionError)
