"""WebSocket connections that hand over messages as they come: the sans-I/O core of `websockets` on a transport.

Its own asyncio client has a queue and a task between the socket and the reader, whose waits would count as latency.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from load.connections.address import Address
from load.connections.http import RequestRefused

_DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class WebSocketWire(asyncio.Protocol):
    """One WebSocket, with one exchange at a time."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._protocol = ClientProtocol(parse_uri(url), max_size=None)
        self._headers = headers
        self._receive: Callable[[bytes, float], bool] | None = None
        self._done: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self._open = False

    @classmethod
    async def open(cls, address: Address, path: str, headers: dict[str, str]) -> WebSocketWire:
        """Connect and shake hands.

        Raises:
            OSError: there is no server.
            RequestRefused: it does not open a WebSocket.
        """
        url = f"{'wss' if address.secure else 'ws'}://{address.authority}{address.path}{path}"
        return await cls.shake_hands(address.connect(lambda: cls(url, headers)))

    @classmethod
    async def shake_hands(cls, connecting: Awaitable[WebSocketWire]) -> WebSocketWire:
        """Ask for a WebSocket on a connection."""
        wire = await connecting
        try:
            await wire._handshake()
        except BaseException:
            wire.abort()
            raise
        return wire

    @property
    def usable(self) -> bool:
        """Whether another exchange can begin."""
        return self._open and self._done is None

    async def exchange(self, message: bytes, receive: Callable[[bytes, float], bool], *, binary: bool = False) -> None:
        """Send a message, and hand over those that come until `receive` returns true.

        Args:
            receive: takes a message, and when it came (`time.perf_counter`).

        Raises:
            ConnectionError: the connection ended before that.
        """
        if not self._open:
            raise ConnectionResetError("the server closed the connection")
        self._receive, self._done = receive, asyncio.get_running_loop().create_future()
        (self._protocol.send_binary if binary else self._protocol.send_text)(message)
        self._flush()
        await self._done
        self._receive = self._done = None

    def send(self, message: bytes) -> None:
        """Send a text during an exchange; nothing happens if the connection has ended."""
        if self._open:
            self._protocol.send_text(message)
            self._flush()

    def close(self) -> None:
        """Say farewell and end."""
        if self._open:
            self._open = False
            self._protocol.send_close(1000)
            self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Cut the connection without a farewell."""
        self._open = False
        self._transport.abort()

    async def _handshake(self) -> None:
        self._done = asyncio.get_running_loop().create_future()
        request = self._protocol.connect()
        for name, value in self._headers.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        self._flush()
        await self._done
        self._done = None
        self._open = True

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._protocol.receive_data(data)
        self._handle_events(now)

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        self._handle_events(time.perf_counter())

    def connection_lost(self, error: Exception | None) -> None:
        self._open = False
        code = self._protocol.close_rcvd.code if self._protocol.close_rcvd else None
        self._end(ConnectionResetError(f"the server closed the connection{f' ({code})' if code else ''}"))

    def _handle_events(self, now: float) -> None:
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                if event.opcode in _DATA:
                    self._take(event, now)
            elif isinstance(event, Response) and self._protocol.handshake_exc is None:
                self._end(None)
        if (error := self._refusal()) is not None:
            self._end(error)
        self._flush()
        if self._protocol.close_expected():
            self._transport.close()

    def _take(self, frame: Frame, now: float) -> None:
        self._parts.append(bytes(frame.data))
        if not frame.fin:
            return
        message = b"".join(self._parts)
        self._parts.clear()
        if self._receive is not None and self._done is not None and not self._done.done():
            try:
                ended = self._receive(message, now)
            except Exception as error:
                self._end(error)
            else:
                if ended:
                    self._end(None)

    def _refusal(self) -> Exception | None:
        match self._protocol.handshake_exc:
            case None:
                return None
            case InvalidStatus(response=response):
                return RequestRefused(response.status_code, bytes(response.body or b""))
            case error:
                return ConnectionAbortedError(f"no WebSocket: {error}")

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)

    def _end(self, error: Exception | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)
