"""A `LimitedProcess` for the tasks of an event loop: no thread waits for it, and it waits for no next message."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import cast

from engine.limited_process import (
    LENGTH_BYTES,
    PATIENCE,
    START_SECONDS,
    LimitExceeded,
    ProcessLimits,
    cause_of_death,
    command,
    framed,
    start_message,
)


class SharedLimitedProcess:
    """A `LimitedProcess` for all tasks of one event loop, which need not wait for each other's answers.

    A message that the process does not survive fails alone; the next process gets those that were sent after it.
    """

    def __init__(self, module: str, setup: bytes, limits: ProcessLimits) -> None:
        """Args: see `LimitedProcess`."""
        self._module, self._limits = module, limits
        self._start_message = start_message(limits, setup)
        self._line: _Line | None = None
        self._starting = asyncio.Lock()

    async def ask(self, message: bytes) -> bytes:
        """Return the answer to a message; neither is empty.

        Raises:
            LimitExceeded, OSError: see `LimitedProcess.ask`.
        """
        while True:
            await self.start()
            assert self._line is not None
            with contextlib.suppress(_Unread):
                return await self._line.ask(message, PATIENCE * self._limits.cpu_seconds)

    async def start(self) -> None:
        """Start the process unless it runs.

        Raises:
            OSError: it cannot be started.
        """
        if self._line is not None and not self._line.ended.done():
            return
        async with self._starting:
            if self._line is not None and not self._line.ended.done():
                return
            loop = asyncio.get_running_loop()
            words, environment = command(self._module)
            _, line = await loop.subprocess_exec(
                lambda: _Line(self._module, self._limits), *words, env=environment, stderr=None
            )
            self._line = line
            try:
                await line.ask(self._start_message, START_SECONDS)
            except LimitExceeded as error:
                raise OSError(f"the process {self._module} does not start") from error

    async def aclose(self) -> None:
        """End the process; tasks that wait for an answer get an OSError."""
        if self._line is not None:
            self._line.kill()
            await asyncio.wait([self._line.ended])


class _Unread(Exception):
    """The process ended before it read the message."""


class _Line(asyncio.SubprocessProtocol):
    """Messages to one process and answers from it, in the same order."""

    def __init__(self, module: str, limits: ProcessLimits) -> None:
        self._module, self._limits = module, limits
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[bytes], float]] = deque()
        """Future of each answer that has not come yet, and the seconds that it may take."""
        self._received = bytearray()
        self._since = 0.0
        """When the process began with the message that it has now."""
        self._alarm: asyncio.TimerHandle | None = None
        self._hung = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def ask(self, message: bytes, seconds: float) -> asyncio.Future[bytes]:
        """Send a message, which may take so many seconds once those before it are answered."""
        answer: asyncio.Future[bytes] = self._loop.create_future()
        if not self._waiting:
            self._since = self._loop.time()
        self._waiting.append((answer, seconds))
        self._look_in(seconds)
        self._stdin.write(framed(message))
        return answer

    def kill(self) -> None:
        """End the process."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.SubprocessProtocol`."""
        self._process = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._process.get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """See `asyncio.SubprocessProtocol`."""
        self._received += data
        while len(self._received) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._received[:LENGTH_BYTES], "little")
            if len(self._received) < end:
                return
            answer, _ = self._waiting.popleft()
            if not answer.done():  # its task may have been cancelled
                answer.set_result(bytes(self._received[LENGTH_BYTES:end]))
            del self._received[:end]
            self._since = self._loop.time()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.SubprocessProtocol`."""
        self.ended.set_result(None)
        self._process.close()
        if self._alarm is not None:
            self._alarm.cancel()
        failure: Exception = cause_of_death(self._process.get_returncode(), self._module, self._limits, hung=self._hung)
        for answer, _ in self._waiting:
            if not answer.done():
                answer.set_exception(failure)
            failure = _Unread()

    def _look_in(self, seconds: float) -> None:
        """Look after so many seconds at the latest: an answer that came leaves its own, perhaps later, alarm behind."""
        if self._alarm is not None:
            if self._alarm.when() <= self._loop.time() + seconds:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """End a process that hangs."""
        self._alarm = None
        if self._waiting:
            left = self._since + self._waiting[0][1] - self._loop.time()
            if left > 0:
                self._look_in(left)
            else:
                self._hung = True
                self.kill()
