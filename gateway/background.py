"""Work that a gateway does beside its turns: every few seconds, all the time, or once.

What it raises is logged, counted and ends nothing else: no part of a gateway stops working without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import ContextVar
from time import monotonic
from typing import Any, TypeVar

log = logging.getLogger("roundhouse.periodic")

PATIENCE = 2.0
"""Seconds that work may go on after it was told to end."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
"""Seconds before work that has failed is begun again; the pause doubles while it goes on to fail."""

Work = Callable[[], Awaitable[object]]
_T = TypeVar("_T")

observe_failure: ContextVar[Callable[[str], None]] = ContextVar("observe_failure", default=lambda work: None)
"""Told the name of work that has failed. A gateway sets it before it makes its parts."""


def failure_reporter(work: str) -> Callable[[], None]:
    """What logs and counts the exception that is being handled.

    It is made together with a gateway's parts and counts in that gateway's metrics, whichever task calls it.
    """
    observe = observe_failure.get()

    def report() -> None:
        log.exception("a fault of ours", extra={"work": work})
        observe(work)

    return report


class Periodic:
    """One piece of work, done again and again.

    It is told to end instead of being cancelled: what a cancelled flush had in hand is lost, and redis-py may take a
    cancellation for a timeout of its own.
    """

    def __init__(self, name: str, work: Work, seconds: float, *, at_end: Work | None = None) -> None:
        """
        Args:
            name: for the log and the metric, from a fixed set.
            work: is done at once, and then after every pause. What it raises is logged and does not end it.
            seconds: of a pause.
            at_end: is done once, when everything else has ended.
        """
        self._name = name
        self._report = failure_reporter(name)
        self._work = work
        self._seconds = seconds
        self._at_end = at_end
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def aclose(self) -> None:
        """Do it to its end, within `PATIENCE`."""
        self._ending.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=PATIENCE)
            if not self._task.done():
                log.warning("work was cut short", extra={"work": self._name})
            await cancel([self._task])

    async def _run(self) -> None:
        while not self._ending.is_set():
            await self._do(self._work)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):  # without a task for every pause, as wait_for has
                    await self._ending.wait()
        if self._at_end is not None:
            await self._do(self._at_end)

    async def _do(self, work: Work) -> None:
        try:
            await work()
        except Exception:
            self._report()


class Kept:
    """Work that goes on until it is closed. Where it ends, by an exception or by itself, it is begun again."""

    def __init__(self, name: str, work: Work) -> None:
        """Args: name: for the log and the metric, from a fixed set; work: goes on until it is cancelled."""
        self._name = name
        self._report = failure_reporter(name)
        self._work = work
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.create_task(self._keep(), name=self._name)

    async def aclose(self) -> None:
        """Cancel it."""
        if self._task is not None:
            await cancel([self._task])

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            began = monotonic()
            try:
                await self._work()
            except Exception:
                self._report()
            pause = FIRST_PAUSE if monotonic() - began > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)


class BackgroundTasks:
    """Tasks for work that is done once. Whoever awaits one gets its result, and None where the work has failed."""

    def __init__(self, name: str) -> None:
        """Args: name: for the log and the metric, from a fixed set."""
        self._name = name
        self._report = failure_reporter(name)
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """How many have not ended."""
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T | None]:
        """Do it from now on."""
        task = asyncio.create_task(self._do(work), name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # which has not begun if the task was cancelled at once
        return task

    async def wait(self, seconds: float) -> None:
        """Wait until all have ended, at most so long."""
        if self._tasks and seconds:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def aclose(self, seconds: float = 0.0) -> None:
        """Cancel those that have not ended within so many seconds."""
        await self.wait(seconds)
        await cancel(self._tasks)

    async def _do(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        try:
            return await work
        except Exception:
            self._report()
            return None


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended: more than once if need be, as redis-py may swallow a cancellation."""
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        done, running = await asyncio.wait(running, timeout=0.5)
        await asyncio.gather(*done, return_exceptions=True)
