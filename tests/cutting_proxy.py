"""A proxy in front of a Redis that can lose a reply: the command was carried out, but its sender cannot know."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class CuttingProxy:
    """Forwards connections on `url` to a Redis on a unix socket."""

    def __init__(self, redis_url: str) -> None:
        self._path = redis_url.removeprefix("unix://")
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.cut_next_reply = False
        """Close the connection in place of the next reply, once."""
        self.cut_reply_to = b""
        """Close the connection in place of the reply to the next commands that hold these bytes, once."""
        self.cuts = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_unix_connection(self._path)
        self._writers |= {writer, to_writer}
        for work in (self._forward(reader, to_writer), self._replies(to_reader, writer)):
            task = asyncio.create_task(work)
            self._tasks.add(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.cut_reply_to and self.cut_reply_to in data:
                    self.cut_reply_to, self.cut_next_reply = b"", True
                writer.write(data)
            writer.close()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.cut_next_reply:
                    self.cut_next_reply = False
                    self.cuts += 1
                    break
                writer.write(data)
            writer.close()

    def close_idle(self) -> None:
        """Close all connections, as Redis does with those that nobody uses."""
        for writer in self._writers:
            writer.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[CuttingProxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.close_idle()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
