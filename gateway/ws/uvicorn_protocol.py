"""uvicorn's WebSocket protocol, made to send in fewer writes and to part from a client that does not read.

uvicorn writes every message by itself, which costs more than making it; here those of one round of the event loop go
out together. And uvicorn waits without end for a client to read what was sent: before it sends more, before it sends a
close frame, and then until that is read too. A client that reads nothing would keep its connection, with all that is
held for it, for ever.

uvicorn also keeps, for as long as a connection lasts, what only its opening needed, which is freed here, and cannot end
while a client is parting.

uvicorn has no public way to do any of this, so that this file depends on how its protocol is written: its attributes,
and which of its methods call each other. `tests/test_internals.py` fails when they move.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame
from websockets.protocol import State

from gateway.ws.waiting import Event, Queue

MAX_HELD = 65_536
"""Bytes of messages, approximately, that may wait for the end of a round of the event loop."""


class SlowConsumer(Exception):
    """The client left its socket unread for too long."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Waits `patience` seconds for a client to read, sends a close frame whatever is still unread, and cuts the
    connection if the client does not answer it.
    """

    patience = 30.0
    _held = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.queue = cast("asyncio.Queue[Any]", Queue())
        self.writable = cast(asyncio.Event, Event())
        self.writable.set()

    async def send(self, message: Any) -> None:
        """Send an ASGI message.

        Raises:
            SlowConsumer: the client has read nothing for `patience` seconds.
            ClientDisconnected: it has left, or was disconnected because of what it sent.
        """
        if self.handshake_complete and self.close_sent and self.initial_response is None:
            # Closed by the protocol, which the application has not heard yet: uvicorn would call that its error.
            raise ClientDisconnected
        if message["type"] == "websocket.close":
            self.writable.set()
            self.loop.call_later(self.close_timeout, self.transport.abort)
        elif not self.writable.is_set():  # a timeout costs more than the rest; nearly always there is none to wait for
            try:
                async with asyncio.timeout(self.patience):
                    await self.writable.wait()
            except TimeoutError:
                raise SlowConsumer from None
        if message["type"] != "websocket.send" or not self.handshake_complete or self.close_sent or self.disconnected:
            await super().send(message)
            if message["type"] == "websocket.accept":
                self._forget_handshake()
            elif message["type"] == "websocket.http.response.body" and self.close_sent:
                # uvicorn would log an error for everybody who is refused.
                self.handshake_complete = True
            return
        text, data = message.get("text"), message.get("bytes")
        payload = text.encode() if text is not None else data or b""
        try:
            if text is None:
                self.conn.send_binary(payload)
            else:
                self.conn.send_text(payload)
        except InvalidState:
            raise ClientDisconnected from None
        if not self._held:
            self.loop.call_soon(self._write)
        self._held += len(payload) + 1
        if self._held > MAX_HELD:
            self._write()

    def shutdown(self) -> None:
        """End with the server, also while the client is parting: uvicorn would fail then, and the server's end with
        it.
        """
        if self.handshake_complete and not self.close_sent and self.conn.state is not State.OPEN:
            self.stop_keepalive()
            self.transport.close()
        else:
            super().shutdown()

    def handle_cont(self, event: Frame) -> None:
        """Put a message together as it comes: a list of fragments may cost fifty times what they hold, and of empty
        ones no limit of a message's size ever sees the end.
        """
        frames = cast("list[bytes | bytearray]", self.frames)
        if not isinstance(frames[0], bytearray):
            frames[0] = bytearray(frames[0])
        frames[0] += event.data
        if event.fin:
            frames[0] = bytes(frames[0])
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        """Pass a message on as uvicorn does, but for text that is not UTF-8: uvicorn would log it as an error of ours,
        and fail where a frame that came with it has closed the connection already.
        """
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                if self.conn.state is State.OPEN:
                    self.conn.send_close(CloseCode.INVALID_DATA)
                    self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def _forget_handshake(self) -> None:
        """Free the request with its headers, which every copy of the scope shares, and the answer to it: 5 KB."""
        cast("list[Any]", self.scope["headers"]).clear()
        del self.request, self.response

    def _write(self) -> None:
        self._held = 0
        output = self.conn.data_to_send()
        if output and not self.transport.is_closing():  # a client may have gone meanwhile: uvloop would raise
            self.transport.write(b"".join(output))


def patient(seconds: float) -> type[WebSocketProtocol]:
    """Make a class of the protocol with this patience, as uvicorn takes a class."""
    return type("WebSocketProtocol", (WebSocketProtocol,), {"patience": seconds})
