"""A proxy in front of a server that can do to its clients what servers and networks do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

RETRY_AFTER = 7
_HEADERS = ("HTTP/1.1 429 Too Many Requests", f"retry-after: {RETRY_AFTER}", "content-length: 2", "connection: close")
_FEW = 256
"""Bytes that a slow proxy forwards at a time, which is about a token."""
_BUSY = "\r\n".join((*_HEADERS, "", "{}")).encode()


class FaultyProxy:
    """Forwards connections to the server at `target`, a ws:// or http:// address."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._host, self._port, self._scheme = parts.hostname, parts.port, parts.scheme
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.address = ""
        self.cut_after: int | None = None
        """Bytes that the server's next reply has left; then its connection ends."""
        self.busy = False
        """Whether posts are answered with 429."""
        self.slow = False
        """Whether replies are forwarded bit by bit, so that a client can act in the middle of one. Without it, all of a
        short answer may come at once on a busy machine, whose kernel can hold it back until then."""

    def hang(self) -> None:
        """Keep all connections, and forward nothing any more."""
        self._flowing.clear()

    async def die(self) -> None:
        """Close all connections, and listen no more."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def rise(self) -> None:
        """Listen again, at the same address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", urlsplit(self.address).port or 0)
        self.address = f"{self._scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FaultyProxy]:
        await self.rise()
        try:
            yield self
        finally:
            await self.die()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, to_server}
        for work in (self._ask(reader, writer, to_server), self._reply(from_server, writer)):
            self._tasks.add(asyncio.create_task(work))

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_server: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                if self.busy and data.startswith(b"POST"):
                    writer.write(_BUSY)
                    continue
                to_server.write(data)
            to_server.close()

    async def _reply(self, from_server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await from_server.read(65536):
                await self._flowing.wait()
                if self.cut_after is not None:
                    writer.write(data[: self.cut_after])
                    self.cut_after = None
                    break
                while self.slow and data:
                    await self._flowing.wait()
                    writer.write(data[:_FEW])
                    data = data[_FEW:]
                    await asyncio.sleep(0.01)
                writer.write(data)
            writer.close()
