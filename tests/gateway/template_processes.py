"""Processes that render chat templates, which all gateways of a test process share: a start takes a quarter of a
processor second."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import TypeVar

from engine.client.shared_process import SharedLimitedProcess
from engine.limited_process import ProcessLimits

_Answer = TypeVar("_Answer")


class TemplateProcesses:
    """Context manager: real processes, one for each template, on an event loop that outlives those of the tests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._started: dict[tuple[str, bytes], SharedLimitedProcess] = {}

    def __enter__(self) -> TemplateProcesses:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started.values():
            asyncio.run_coroutine_threadsafe(process.aclose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def lend(self, module: str, setup: bytes, limits: ProcessLimits) -> LentProcess:
        """Return what a gateway has instead of a `SharedLimitedProcess` of its own."""
        process = self._started.setdefault((module, setup), SharedLimitedProcess(module, setup, limits))
        return LentProcess(process, self._loop)


class LentProcess:
    """A `SharedLimitedProcess` of another event loop, which goes on when a gateway ends."""

    def __init__(self, process: SharedLimitedProcess, loop: asyncio.AbstractEventLoop) -> None:
        self._process, self._loop = process, loop

    async def start(self) -> None:
        await self._there(self._process.start())

    async def ask(self, message: bytes) -> bytes:
        return await self._there(self._process.ask(message))

    async def aclose(self) -> None:
        pass

    async def _there(self, work: Coroutine[object, object, _Answer]) -> _Answer:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
