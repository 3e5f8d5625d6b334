"""A deadline for others that does not measure how busy this process is."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

_TICKS = 5
"""Parts of the time. A part counts once, however late the loop comes to it."""
_TURNS = 3
"""Turns of the loop after the last part, in which an answer that has come meanwhile is read and taken."""


class Patience:
    """`asyncio.timeout` by the time for which the event loop was free to take an answer.

    A loop that was blocked for a second learns of the answer and of the deadline at once, and in no certain order: by
    the clock an idle peer would be taken for a dead one whenever this process has much to do.
    """

    def __init__(self, seconds: float | None) -> None:
        """Args: seconds: None waits without end."""
        self._part = None if seconds is None else seconds / _TICKS
        self._waited = 0
        self._handle: asyncio.Handle | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        if self._part is not None:
            self._handle = asyncio.get_running_loop().call_later(self._part, self._tick)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raises TimeoutError: the time is up."""
        if self._handle is not None:
            self._handle.cancel()
        over = self._waited > _TICKS + _TURNS and self._task.uncancel() <= self._cancelling
        if over and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._waited += 1
        if self._waited < _TICKS:
            assert self._part is not None
            self._handle = loop.call_later(self._part, self._tick)
        elif self._waited <= _TICKS + _TURNS:
            self._handle = loop.call_soon(self._tick)
        else:
            self._task.cancel()
