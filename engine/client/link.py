"""One WebSocket to an engine, without tasks, queues and futures between asyncio's transport and its frames.

The protocol is the `websockets` library's own, without its I/O. Its connection for asyncio wakes a task for every
message and for every send; a gateway that carries a thousand answers would spend a tenth of its time on that.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

_CLOSE_TIMEOUT = 1.0
"""Seconds that the other end has to answer a close frame."""


class Link(asyncio.Protocol):
    """A connection to `ws://host:port`, `wss://...` or `unix:///path`, which passes every message to `receive` as it
    arrives. Messages are binary.

    An exception from `receive` ends the connection. `closed` is done when the connection has ended for any reason, and
    raises that: the exception of `receive`, `websockets`' of a refused or broken connection, or the transport's.
    """

    def __init__(self, address: str, receive: Callable[[bytes], None], *, max_size: int) -> None:
        uri = "ws://localhost/" if address.startswith("unix://") else address
        self._address = address
        self._websocket = ClientProtocol(parse_uri(uri), max_size=max_size)
        self._receive = receive
        self._transport: asyncio.Transport
        self._made = False
        self._message: list[bytes] = []
        """Parts of a message whose end has not come yet."""
        loop = asyncio.get_running_loop()
        self._open: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        for future in (self._open, self.closed):  # their exceptions need not be retrieved
            future.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def connect(self, tls: ssl.SSLContext | None = None, server_name: str | None = None) -> None:
        """Connect. Combine with `asyncio.timeout`. Messages may arrive before it returns.

        Args:
            tls: for `wss://`, instead of the machine's authorities.
            server_name: what the certificate must be for, if not for the host of the address.

        Raises:
            OSError: nobody listens there, or TLS fails.
            WebSocketException: the other end does not speak WebSocket, or refuses us.
        """
        loop = asyncio.get_running_loop()
        if self._address.startswith("unix://"):
            await loop.create_unix_connection(lambda: self, self._address.removeprefix("unix://"))
        else:
            address = urlsplit(self._address)
            secure = (tls or ssl.create_default_context()) if address.scheme == "wss" else None
            port = address.port or (443 if secure else 80)
            name = None if secure is None else server_name
            await loop.create_connection(lambda: self, address.hostname or "", port, ssl=secure, server_hostname=name)
        await self._open

    def send(self, message: bytes) -> None:
        """Send a binary message; does nothing on a connection that is closing."""
        if self._websocket.state is State.OPEN:
            self._websocket.send_binary(message)
            self._flush()

    async def aclose(self) -> None:
        """Close the connection, if there is one, and wait until it is."""
        if not self._made:
            return
        if self._websocket.state is State.OPEN:
            self._websocket.send_close()
            self._flush()
            await asyncio.wait([self.closed], timeout=_CLOSE_TIMEOUT)
        self._transport.abort()
        await asyncio.wait([self.closed], timeout=_CLOSE_TIMEOUT)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)
        self._made = True
        self._websocket.send_request(self._websocket.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            self._websocket.receive_data(data)
            for event in self._websocket.events_received():
                if isinstance(event, Frame):
                    self._frame(event)
                elif isinstance(event, Response):
                    self._answered()
        except Exception as error:
            self._fail(error)
            self._transport.abort()
            return
        self._flush()
        if self._websocket.close_expected():
            self._transport.close()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`."""
        self._websocket.receive_eof()
        self._answered()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        try:
            if self._websocket.state is not State.CLOSED:
                self._websocket.receive_eof()
            error = error or self._websocket.handshake_exc or self._websocket.close_exc
        finally:
            # Whatever state the protocol is in, this connection has ended.
            self._fail(error or ConnectionResetError("the connection was lost"))

    def _frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT:
            raise ValueError("a text message, where all are binary")
        if frame.opcode is Opcode.BINARY and frame.fin:
            self._receive(bytes(frame.data))
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._message.append(bytes(frame.data))
            if frame.fin:
                message, self._message = b"".join(self._message), []
                self._receive(message)

    def _answered(self) -> None:
        """Act on the handshake, which has succeeded or failed."""
        if self._open.done():
            return
        if self._websocket.handshake_exc is not None:
            self._open.set_exception(self._websocket.handshake_exc)
        else:
            self._open.set_result(None)

    def _flush(self) -> None:
        if output := self._websocket.data_to_send():
            self._transport.write(b"".join(output))

    def _fail(self, error: Exception) -> None:
        for future in (self._open, self.closed):
            if not future.done():
                future.set_exception(error)
