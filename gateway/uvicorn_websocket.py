"""uvicorn's WebSocket protocol, made to part from a client that does not read.

uvicorn waits until the client has read what was sent before it sends a close frame, and then until it has read that
too: a client that reads nothing would keep its connection, and what is buffered for it, for ever.
"""

from __future__ import annotations

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Sends a close frame whatever is still unread, and cuts the connection if the client does not answer it."""

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "websocket.close":
            self.writable.set()
            self.loop.call_later(self.close_timeout, self.transport.abort)
        await super().send(message)
