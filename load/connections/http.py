"""HTTP/1.1 connections that hand over a body's bytes as they come, with the time at which they came.

Common clients wake a task for each piece, and parse in Python: that would cost more than many servers take to make one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import httptools

from load.connections.address import Address

Receive = Callable[[bytes, float], object]
"""Takes bytes, and when they came (`time.perf_counter`)."""
_MOST_OF_AN_ERROR = 10_000
"""Bytes of a refusal's body that are kept."""


class RequestRefused(Exception):
    """The server answered with a status other than 2xx; the text is that status and what it said."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        super().__init__(f"{status} {_message(body)}".strip())


class HttpConnection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, address: Address, headers: dict[str, str]) -> None:
        self._address = address
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._done: asyncio.Future[None] | None = None
        self._open = self._framed = self._keeps_alive = False
        self._status = 0

    @classmethod
    async def open(cls, address: Address, headers: dict[str, str]) -> HttpConnection:
        """Connect.

        Raises:
            OSError: there is no server.
        """
        return await address.connect(lambda: cls(address, headers))

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return self._open and self._done is None

    async def request(self, method: str, path: str, body: bytes | None, receive: Receive) -> None:
        """Send a request, and hand over the answer's body; returns at its end.

        Raises:
            RequestRefused: the status is not 2xx; nothing was handed over.
            ConnectionError: the connection ended before the answer did.
        """
        if not self._open:
            raise ConnectionResetError("the server closed the connection")
        head = f"{method} {self._address.path}{path} HTTP/1.1\r\nHost: {self._address.authority}\r\n{self._headers}"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._parser = httptools.HttpResponseParser(self)
        self._receive, self._refusal = receive, bytearray()
        self._framed, self._keeps_alive, self._status = False, False, 0
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(head.encode("latin-1") + b"\r\n" + (body or b""))
        await self._done
        self._done = None
        if not self._keeps_alive:
            self.close()
        if not 200 <= self._status < 300:
            raise RequestRefused(self._status, bytes(self._refusal))

    def close(self) -> None:
        """End an idle connection."""
        self._open = False
        self._transport.close()

    def abort(self) -> None:
        """Cut the connection without a farewell."""
        self._open = False
        self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open = True

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        if self._done is None or self._done.done():
            self.abort()  # bytes that belong to no request
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.abort()
            self._end(ConnectionAbortedError(f"the server speaks no HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        # A body without a length ends with its connection.
        whole = self._open and self._status >= 200 and not self._framed and error is None
        self._open = False
        self._end(None if whole else ConnectionResetError("the server closed the connection"))

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._framed = self._framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if 200 <= self._status < 300:
            self._receive(body, self._now)
        elif len(self._refusal) < _MOST_OF_AN_ERROR:
            self._refusal += body

    def on_message_complete(self) -> None:
        if self._status >= 200:  # an interim answer is followed by the real one
            self._keeps_alive = self._parser.should_keep_alive()  # known until the end of this call
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)


class EventStream:
    """Splits the body of an answer into server-sent events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the data of each event that is whole by now."""
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines)


def _message(body: bytes) -> str:
    """Return what an error's body says: OpenAI's shape, or else its beginning."""
    try:
        error: Any = json.loads(body)["error"]
        return error if isinstance(error, str) else f"{error.get('code') or error.get('type')}: {error['message']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return body[:200].decode("latin-1")
