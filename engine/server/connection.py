"""One client's connection to an engine: frames to be sent to it, and its requests.

No client can slow the engine: what it does not read piles up to a limit, then it is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from engine.wire import PROTOCOL_MIN, Output, Step, encode

logger = logging.getLogger("engine.server.host")


class ProtocolViolation(Exception):
    """A client broke the protocol; its connection is closed with `code`."""

    def __init__(self, code: CloseCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Connection:
    """Frames to be sent to one client, and its requests."""

    def __init__(self, websocket: ServerConnection, max_backlog_bytes: int) -> None:
        self.live: dict[str, str] = {}
        """Ids of requests that are in the core or on their way to it -> their names in logs."""
        self.ending: set[str] = set()
        """Ids of requests whose cancellation is on its way to the core."""
        self.protocol = PROTOCOL_MIN
        """Version of the protocol that the client speaks at the least."""
        self.follows = False
        """Whether the client has asked to be told of prefix blocks."""
        self._websocket = websocket
        self._max_backlog_bytes = max_backlog_bytes
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._filled = asyncio.Event()

    @property
    def requests(self) -> int:
        return len(self.live) + len(self.ending)

    @property
    def behind(self) -> bool:
        """Whether something is left to be sent."""
        return bool(self._backlog_bytes)

    def post(self, step: Step) -> None:
        """Queue a frame; never waits and never raises. A client that is too far behind is cut off."""
        for output in step.outputs:
            if output.finish is not None:
                _log_end(self.live.pop(output.id, output.id), output)
                self.ending.discard(output.id)
        try:
            frame = encode(step)
        except Exception:
            # Its client would wait for ever; the other connections have frames of their own.
            logger.exception("a frame cannot be written; its connection is cut off")
            self._cut_off()
        else:
            self.send(frame)

    def send(self, frame: bytes) -> None:
        self._backlog.append(frame)
        self._backlog_bytes += len(frame)
        self._filled.set()
        if self._backlog_bytes > self._max_backlog_bytes and not self._websocket.transport.is_closing():
            logger.warning("a client left %d bytes unread and is cut off", self._backlog_bytes)
            self._cut_off()

    def _cut_off(self) -> None:
        self._backlog.clear()
        # Not close(): that would wait for the client to read.
        self._websocket.transport.abort()

    async def write(self) -> None:
        """Send what is queued until the connection is gone."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self._backlog:
                    frame = self._backlog.popleft()
                    await self._websocket.send(frame)
                    self._backlog_bytes -= len(frame)


def _log_end(name: str, output: Output) -> None:
    # Not the error's text: of a request that is invalid it may repeat what a client has written.
    level = logging.WARNING if output.error_kind == "internal" else logging.INFO
    if logger.isEnabledFor(level):
        tokens = output.usage.output_tokens if output.usage else 0
        logger.log(
            level,
            "request ended: %s finish=%s error=%s output_tokens=%d",
            name,
            output.finish,
            output.error_kind or "-",
            tokens,
        )
