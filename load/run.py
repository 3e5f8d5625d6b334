"""The open loop: each turn begins when it is due, whether or not earlier ones have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from load.plan import PlannedTurn
from load.records import MeasuredTurn


class OpenLoop:
    """One run.

    Args:
        run_turn: runs a turn, given when the run began by `time.perf_counter`.
        hopeless: told of each turn that has ended; once it returns true, no more turns begin.
    """

    def __init__(
        self,
        run_turn: Callable[[PlannedTurn, float], Awaitable[MeasuredTurn]],
        hopeless: Callable[[MeasuredTurn], bool] = lambda _: False,
    ) -> None:
        self._run_turn = run_turn
        self._hopeless = hopeless
        self._running: set[asyncio.Task[None]] = set()
        self._arriving: asyncio.Task[None] | None = None
        self._began = time.perf_counter()
        self.turns: list[MeasuredTurn] = []
        """Those that have ended, in the order of their ends."""
        self.stopped = False
        """Whether the run was stopped before all turns had begun."""

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    async def run(self, turns: Iterable[PlannedTurn]) -> list[MeasuredTurn]:
        """Begin each turn when it is due, and wait for the ends of all."""
        self._began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            self._arriving = group.create_task(self._arrive(turns, group))
        return self.turns

    def stop(self) -> None:
        """Begin no more turns and wait for those that run; called again, leave these too."""
        if not self._stop_arriving():
            for task in self._running:
                task.cancel()

    def _stop_arriving(self) -> bool:
        if self.stopped or self._arriving is None or self._arriving.done():
            return False
        self.stopped = self._arriving.cancel()
        return True

    async def _arrive(self, turns: Iterable[PlannedTurn], group: asyncio.TaskGroup) -> None:
        for turn in turns:
            # Also when late: answers are read in between.
            await asyncio.sleep(max(0.0, turn.start - self.seconds))
            task = group.create_task(self._one(turn))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _one(self, turn: PlannedTurn) -> None:
        measured = await self._run_turn(turn, self._began)
        self.turns.append(measured)
        if self._hopeless(measured):
            self._stop_arriving()
