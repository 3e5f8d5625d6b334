"""Runs the work that a gateway does beside its turns: every few seconds, all the time, or once.

An exception of such work is logged and counted, and ends nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import ContextVar
from time import monotonic
from typing import Any, Protocol, TypeVar

log = logging.getLogger("roundhouse.periodic")

PATIENCE = 2.0
"""Seconds that work may go on after it was told to end."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
"""Seconds before work that has failed is begun again; the pause doubles while it goes on to fail."""

Work = Callable[[], Awaitable[object]]
_T = TypeVar("_T")

observe_failure: ContextVar[Callable[[str], None]] = ContextVar("observe_failure", default=lambda work: None)
"""Called with the name of work that has failed. A gateway sets it before it makes its parts."""


def failure_reporter(work: str) -> Callable[[], None]:
    """Return a function that logs and counts the exception that is being handled.

    Call this while a gateway makes its parts: failures count in that gateway's metrics, whichever task reports them.
    """
    observe = observe_failure.get()

    def report() -> None:
        log.exception("a fault of ours", extra={"work": work})
        observe(work)

    return report


class Periodic:
    """Does one piece of work again and again.

    Closing lets running work finish instead of cancelling it: a cancelled flush loses what it was writing, and redis-py
    may take a cancellation for a timeout of its own.
    """

    def __init__(self, name: str, work: Work, seconds: float, *, at_end: Work | None = None) -> None:
        """
        Args:
            name: for the log and the metric, from a fixed set.
            work: done at once, and then after every pause. An exception is logged and does not end the repetition.
            seconds: length of a pause.
            at_end: done once on closing, after `work` has ended.
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
        """Let running work and then `at_end` finish; cancel them after `PATIENCE`."""
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
    """Keeps work running until it is closed: work that ends, by an exception or by itself, is started again."""

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
        """Cancel the work."""
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
    """Runs work that is done once, in tasks. Awaiting a task gives the result, or None if the work has failed."""

    def __init__(self, name: str) -> None:
        """Args: name: for the log and the metric, from a fixed set."""
        self._name = name
        self._report = failure_reporter(name)
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Number of tasks that have not ended."""
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T | None]:
        """Start a task that does this work."""
        task = asyncio.create_task(self._do(work), name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # which has not begun if the task was cancelled at once
        return task

    async def wait(self, seconds: float) -> None:
        """Wait until all tasks have ended, at most this long."""
        if self._tasks and seconds:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def aclose(self, seconds: float = 0.0) -> None:
        """Cancel the tasks that have not ended within this time."""
        await self.wait(seconds)
        await cancel(self._tasks)

    async def _do(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        try:
            return await work
        except Exception:
            self._report()
            return None


class _Part(Protocol):
    """A part that works in the background. `aclose` also undoes a `start` that has failed."""

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...


_P = TypeVar("_P", bound=_Part)


class Starter:
    """Starts parts, and has a stack end them in reverse."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack

    async def start(self, part: _P) -> _P:
        self._stack.push_async_callback(part.aclose)
        await part.start()
        return part

    async def repeat(self, name: str, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Do some work every so many seconds, and once more at the end."""
        await self.start(Periodic(name, work, seconds, at_end=work))


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended: more than once if need be, as redis-py may swallow a cancellation."""
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        done, running = await asyncio.wait(running, timeout=0.5)
        await asyncio.gather(*done, return_exceptions=True)
