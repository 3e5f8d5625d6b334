"""A gateway that serves on a loop of its own, for clients that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

T = TypeVar("T")


class ServingThread(Generic[T]):
    """Context manager: enters what `serving` makes on a loop of its own, and gives what that gives."""

    def __init__(self, serving: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._serving = serving
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._ready = threading.Event()
        self._served: T
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            # Unlike a bare loop it waits for what is still being closed.
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                runner.run(self._serve())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        async with self._serving() as self._served:
            self._ready.set()
            await self._stopping.wait()

    def __enter__(self) -> T:
        self._thread.start()
        assert self._ready.wait(60)
        if self._error is not None:
            raise self._error
        return self._served

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._error is not None:
            raise self._error
