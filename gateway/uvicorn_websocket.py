"""uvicorn's WebSocket protocol, made to part from a client that does not read.

uvicorn waits without end for a client to read what was sent: before it sends more, before it sends a close frame, and
then until that is read too. A client that reads nothing would keep its connection, and what is buffered for it, for
ever.
"""

from __future__ import annotations

import asyncio

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class SlowConsumer(Exception):
    """The client left its socket unread for too long."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Waits `patience` seconds for a client to read, sends a close frame whatever is still unread, and cuts the
    connection if the client does not answer it.
    """

    patience = 30.0

    async def send(self, message: ASGISendEvent) -> None:
        """Send an ASGI message.

        Raises:
            SlowConsumer: the client has read nothing for `patience` seconds.
        """
        if message["type"] == "websocket.close":
            self.writable.set()
            self.loop.call_later(self.close_timeout, self.transport.abort)
        elif not self.writable.is_set():  # a timeout costs more than the rest; nearly always there is none to wait for
            try:
                async with asyncio.timeout(self.patience):
                    await self.writable.wait()
            except TimeoutError:
                raise SlowConsumer from None
        await super().send(message)


def patient(seconds: float) -> type[WebSocketProtocol]:
    """The protocol with that patience; uvicorn wants a class."""
    return type("WebSocketProtocol", (WebSocketProtocol,), {"patience": seconds})
