"""A way from one process to another through a proxy, which a test delays, holds up or cuts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path


class Link:
    """Forwards connections from one unix socket to another."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self.delay = 0.0
        """Seconds that each piece takes longer."""
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def hold(self) -> None:
        """Let nothing through, in either direction, as in a partition; what is sent waits."""
        self._open.clear()

    def release(self) -> None:
        """Let everything through, first of all what has waited."""
        self._open.set()

    def cut(self) -> None:
        """Break all connections, with what has not been forwarded."""
        for writer in self._writers:
            writer.transport.abort()
        self._open.set()

    def refuse(self, refusing: bool) -> None:
        """Whether new connections are closed at once from now on."""
        self._refusing = refusing

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._connected, self.path)
        try:
            yield
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._refusing:
                raise ConnectionRefusedError
            to_reader, to_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_writer}
        ends = (writer, to_writer)
        for source, target in ((reader, to_writer), (to_reader, writer)):
            task = asyncio.create_task(self._forward(source, target, ends))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, ends: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    if self.delay:
                        await asyncio.sleep(self.delay)
                    await self._open.wait()
                    target.write(data)
                    await target.drain()
        finally:
            for end in ends:
                end.close()
                self._writers.discard(end)
