"""How a turn is asked, cancelled and resumed over each protocol."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from load.connections.address import Address
from load.connections.http import EventStream, HttpConnection
from load.connections.websocket import WebSocketWire
from load.plan import Protocol
from load.transcript import ResponsesTranscript, Transcript

Seen = Callable[[], None]
"""Called after each event that the transcript has taken."""


class TurnChannel(abc.ABC):
    """A connection of one tenant on which one turn runs at a time."""

    @property
    @abc.abstractmethod
    def usable(self) -> bool:
        """Whether another turn can be asked."""

    @abc.abstractmethod
    async def ask(self, body: dict[str, Any], transcript: Transcript, seen: Seen) -> None:
        """Ask, and return when the turn has ended.

        Raises:
            RequestRefused: the server did not begin it.
            ConnectionError: the connection ended before the turn did.
        """

    @abc.abstractmethod
    async def cancel(self, transcript: Transcript) -> None:
        """End the running turn early; `ask` returns, or raises ConnectionError where that cuts the connection."""

    @abc.abstractmethod
    def close(self) -> None:
        """End an idle connection."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Cut the connection without a farewell."""


class ResponsesSocketChannel(TurnChannel):
    """Responses over a WebSocket."""

    def __init__(self, wire: WebSocketWire) -> None:
        self._wire = wire

    @classmethod
    async def open(cls, address: Address, headers: dict[str, str]) -> TurnChannel:
        return cls(await WebSocketWire.open(address, "/responses", headers))

    @property
    def usable(self) -> bool:
        return self._wire.usable

    async def ask(self, body: dict[str, Any], transcript: Transcript, seen: Seen) -> None:
        await self._exchange({"type": "response.create", **body}, transcript, seen)

    async def resume(self, transcript: ResponsesTranscript, seen: Seen) -> None:
        """Ask for the rest of a turn, and return when it has ended; raises what `ask` does."""
        place = {"response_id": transcript.response_id, "starting_after": transcript.last_number}
        await self._exchange({"type": "response.resume", **place}, transcript, seen)

    async def cancel(self, transcript: Transcript) -> None:
        assert isinstance(transcript, ResponsesTranscript)
        self._wire.send(msgspec.json.encode({"type": "response.cancel", "response_id": transcript.response_id}))

    def close(self) -> None:
        self._wire.close()

    def abort(self) -> None:
        self._wire.abort()

    async def _exchange(self, message: dict[str, Any], transcript: Transcript, seen: Seen) -> None:
        def receive(data: bytes, now: float) -> bool:
            ended = transcript.take(data, now)
            seen()
            return ended

        await self._wire.exchange(msgspec.json.encode(message), receive)


class HttpChannel(TurnChannel):
    """Chat completions as server-sent events, which nothing resumes, and which are cancelled by leaving."""

    path = "/chat/completions"

    def __init__(self, address: Address, headers: dict[str, str], connection: HttpConnection) -> None:
        self._address = address
        self._headers = headers
        self._connection = connection

    @classmethod
    async def open(cls, address: Address, headers: dict[str, str]) -> TurnChannel:
        return cls(address, headers, await HttpConnection.open(address, headers))

    @property
    def usable(self) -> bool:
        return self._connection.usable

    async def ask(self, body: dict[str, Any], transcript: Transcript, seen: Seen) -> None:
        await self._request("POST", self.path, msgspec.json.encode(body), transcript, seen)

    async def cancel(self, transcript: Transcript) -> None:
        self.abort()

    def close(self) -> None:
        self._connection.close()

    def abort(self) -> None:
        self._connection.abort()

    async def _request(self, method: str, path: str, body: bytes | None, transcript: Transcript, seen: Seen) -> None:
        events = EventStream()

        def receive(data: bytes, now: float) -> None:
            for event in events.feed(data):
                transcript.take(event, now)
                seen()

        await self._connection.request(method, path, body, receive)
        if transcript.end is None:
            raise ConnectionAbortedError("the answer ended without its last event")


class ResponsesHttpChannel(HttpChannel):
    """Responses as server-sent events."""

    path = "/responses"

    async def resume(self, transcript: ResponsesTranscript, seen: Seen) -> None:
        """Ask for the rest of a turn, and return when it has ended; raises what `ask` does."""
        place = f"{self.path}/{transcript.response_id}?stream=true&starting_after={transcript.last_number}"
        await self._request("GET", place, None, transcript, seen)

    async def cancel(self, transcript: Transcript) -> None:
        assert isinstance(transcript, ResponsesTranscript)
        with contextlib.closing(await HttpConnection.open(self._address, self._headers)) as other:
            await other.request("POST", f"{self.path}/{transcript.response_id}/cancel", b"{}", lambda *_: None)


CHANNELS: dict[Protocol, type[ResponsesSocketChannel] | type[HttpChannel]] = {
    "chat": HttpChannel,
    "responses": ResponsesSocketChannel,
    "responses-http": ResponsesHttpChannel,
}
