"""`roundhouse chat`: a conversation in the terminal, over the same WebSocket that browsers use."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
from rich.console import Console
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException


class ChatError(Exception):
    """The conversation cannot go on; the message says why and what to do."""


class Chat:
    """One conversation: every question continues the answer before it."""

    def __init__(self, connection: ClientConnection, model: str) -> None:
        self._connection = connection
        self._model = model
        self._previous: str | None = None

    async def ask(self, question: str, write: Callable[[str], None]) -> dict[str, Any] | None:
        """Send a question and write the answer as it arrives; Ctrl-C stops the answer. Returns the route.

        Raises:
            ChatError: the server refused the question or broke off.
        """
        create = {"type": "response.create", "model": self._model, "input": question}
        if self._previous:
            create["previous_response_id"] = self._previous
        await self._send(create)
        response: str | None = None
        route: dict[str, Any] | None = None
        with _on_interrupt(lambda: self._cancel(response)):
            async for event in self._events():
                match event["type"]:
                    case "response.created":
                        response = event["response"]["id"]
                    case "roundhouse.route":
                        route = event
                    case "response.output_text.delta":
                        write(event["delta"])
                    case "response.output_item.done" if event["item"]["type"] == "function_call":
                        write(f"\n[calls {event['item']['name']} {event['item']['arguments']}]")
                    case "response.completed" | "response.incomplete" | "response.failed" as end:
                        if end == "response.failed":
                            raise ChatError(event["response"]["error"]["message"])
                        if event["response"]["status"] != "cancelled":
                            self._previous = response
                        return route
                    case "error":
                        raise ChatError(event["error"]["message"])
        return route

    def _cancel(self, response: str | None) -> None:
        if response:
            self._cancelling = asyncio.ensure_future(self._send({"type": "response.cancel", "response_id": response}))

    async def _send(self, event: dict[str, Any]) -> None:
        try:
            await self._connection.send(msgspec.json.encode(event).decode())
        except ConnectionClosed as error:
            raise ChatError(f"the connection was closed: {error}") from error

    async def _events(self) -> AsyncIterator[dict[str, Any]]:
        try:
            async for message in self._connection:
                yield msgspec.json.decode(message)
        except ConnectionClosed as error:
            raise ChatError(f"the connection was closed: {error}") from error
        raise ChatError("the server closed the connection")


async def chat(url: str, key: str, model: str, once: str | None) -> None:
    """Talk to the server at `url`; with `once`, ask that and return.

    Raises:
        ChatError: no connection, or the one question failed.
    """
    console = Console(stderr=once is not None, highlight=False)
    address = urlsplit(url)._replace(scheme="wss" if url.startswith("https") else "ws", path="/v1/responses").geturl()
    try:
        async with connect(address, additional_headers={"Authorization": f"Bearer {key}"}, max_size=None) as connection:
            conversation = Chat(connection, model)
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
