"""`roundhouse chat`: a conversation in the terminal, over the same WebSocket that browsers use."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
from rich.console import Console
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from gateway.protocol.codec import JsonCodec

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds before a connection that was lost is opened again: the first time, and at most."""
MAX_ATTEMPTS = 10
"""Attempts in a row to get back to an answer."""


class ChatError(Exception):
    """The conversation cannot go on; the message says why and what to do."""


class Chat:
    """One conversation: every question continues the answer before it.

    A connection that breaks, or a gateway that restarts, costs a pause: the answer goes on where it was. A question
    that may not have arrived is asked again under the same key, so that it is answered once.
    """

    def __init__(self, address: str, key: str, model: str) -> None:
        self._address = address
        self._key = key
        self._model = model
        self._socket: ClientConnection | None = None
        self._previous: str | None = None
        self._reconnect_after = 0.0

    async def open(self) -> None:
        """Connect.

        Raises:
            OSError, WebSocketException: there is no server, or it refuses.
        """
        headers = {"Authorization": f"Bearer {self._key}"}
        # The subprotocol asks for the events in which the route comes.
        self._socket = await connect(
            self._address, additional_headers=headers, subprotocols=[Subprotocol(JsonCodec.subprotocol)], max_size=None
        )

    async def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            await self._socket.close()
            self._socket = None

    async def ask(self, question: str, write: Callable[[str], None]) -> dict[str, Any] | None:
        """Send a question and write the answer as it arrives; Ctrl-C stops the answer. Returns the route.

        Raises:
            ChatError: the server refused the question, or could not be reached again.
        """
        key = secrets.token_hex(16)
        create = {"type": "response.create", "model": self._model, "input": question, "idempotency_key": key}
        if self._previous:
            create["previous_response_id"] = self._previous
        answer = _Answer()
        attempts = 0
        with _on_interrupt(lambda: self._cancel(answer)):
            while True:
                try:
                    await self._send(answer.resume() or create)
                    if answer.cancelled:
                        self._cancel(answer)
                    async for event in self._events():
                        attempts = 0
                        ended = answer.take(event, write)
                        if answer.cancelled and event["type"] == "response.created":
                            self._cancel(answer)
                        if ended:
                            if answer.continuable:
                                self._previous = answer.response
                            return answer.route
                except (WebSocketException, OSError, _Restarting) as error:
                    attempts += 1
                    await self._reconnect(attempts, error)

    def _cancel(self, answer: _Answer) -> None:
        answer.cancelled = True
        if answer.response:
            self._cancelling = asyncio.ensure_future(self._send_cancel(answer.response))

    async def _send_cancel(self, response: str) -> None:
        with contextlib.suppress(WebSocketException, OSError):
            await self._send({"type": "response.cancel", "response_id": response})

    async def _send(self, event: dict[str, Any]) -> None:
        if self._socket is None:
            await self.open()
        assert self._socket is not None
        await self._socket.send(msgspec.json.encode(event).decode())

    async def _events(self) -> AsyncIterator[dict[str, Any]]:
        assert self._socket is not None
        while True:
            event: dict[str, Any] = msgspec.json.decode(await self._socket.recv())
            if event["type"] == "roundhouse.draining":
                self._reconnect_after = event["reconnect_after_ms"] / 1000  # the running answer ends first
            else:
                yield event

    async def _reconnect(self, attempt: int, error: Exception) -> None:
        if attempt > MAX_ATTEMPTS or (isinstance(error, InvalidStatus) and error.response.status_code < 500):
            raise ChatError(f"the connection was lost and does not come back: {error}") from error
        await self.close()
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1))
        await asyncio.sleep(max(self._reconnect_after, random.uniform(FIRST_PAUSE, pause)))
        self._reconnect_after = 0.0


class _Restarting(Exception):
    """The gateway is restarting and takes no new questions."""


class _Answer:
    """The received part of one answer."""

    def __init__(self) -> None:
        self.response: str | None = None
        self.last = -1
        self.route: dict[str, Any] | None = None
        self.cancelled = False
        self.continuable = False

    def resume(self) -> dict[str, Any] | None:
        """Return the event that asks for the rest of the answer; None if it has not begun."""
        if self.response is None:
            return None
        return {"type": "response.resume", "response_id": self.response, "starting_after": self.last}

    def take(self, event: dict[str, Any], write: Callable[[str], None]) -> bool:
        """Take one event; return whether it was the last one."""
        if event["type"] == "error":
            if event["error"]["code"] == "draining":
                raise _Restarting
            raise ChatError(event["error"]["message"])
        if event["sequence_number"] <= self.last:
            return False
        self.last = event["sequence_number"]
        match event["type"]:
            case "response.created":
                self.response = event["response"]["id"]
            case "roundhouse.route":
                self.route = event
            case "response.output_text.delta":
                write(event["delta"])
            case "response.output_item.done" if event["item"]["type"] == "function_call":
                write(f"\n[calls {event['item']['name']} {event['item']['arguments']}]")
            case "response.completed" | "response.incomplete" | "response.failed" as end:
                if end == "response.failed":
                    raise ChatError(event["response"]["error"]["message"])
                self.continuable = event["response"]["status"] != "cancelled"
                return True
        return False


async def chat(url: str, key: str, model: str, once: str | None) -> None:
    """Talk to the server at `url`; with `once`, ask that and return.

    Raises:
        ChatError: no connection, or the one question failed.
    """
    console = Console(stderr=once is not None, highlight=False)
    address = urlsplit(url)._replace(scheme="wss" if url.startswith("https") else "ws", path="/v1/responses").geturl()
    conversation = Chat(address, key, model)
    try:
        await conversation.open()
        if once is not None:
            await conversation.ask(once, _write)
            _write("\n")
            return
        console.print(f"[bold]Roundhouse[/bold] at {url} - an empty line or Ctrl-D ends, Ctrl-C stops an answer")
        await _talk(conversation, console)
    except InvalidStatus as error:
        raise ChatError(_refusal(error)) from error
    except (OSError, WebSocketException) as error:
        raise ChatError(f"no server answers at {url} ({error}); start one with: roundhouse serve") from error
    finally:
        await conversation.close()


async def _talk(conversation: Chat, console: Console) -> None:
    while True:
        try:
            question = (await asyncio.to_thread(console.input, "\n[bold cyan]>[/] ")).strip()
        except (EOFError, KeyboardInterrupt):
            return
        if not question:
            return
        try:
            route = await conversation.ask(question, _write)
        except ChatError as error:
            console.print(f"[red]{error}[/red]")
            continue
        _write("\n")
        if route:
            console.print(f"[dim]{route['tier']} - {route['model']} - {'; '.join(route['reasons'])}[/dim]")


@contextlib.contextmanager
def _on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _refusal(error: InvalidStatus) -> str:
    try:
        return str(msgspec.json.decode(error.response.body or b"")["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"the server refused the connection with status {error.response.status_code}"
