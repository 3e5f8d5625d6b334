"""Clients that come back: over WebSocket, over HTTP with streamed responses and chat completions, and in a terminal."""

from __future__ import annotations

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from gateway.cli.chat import Chat, ChatError
from tests.chaos.cases import Case
from tests.chaos.installation import api_key
from tests.chaos.records import Answer, TurnRecord

SILENCE = 8.0
"""Seconds without an event after which a client gives a connection up and comes back."""
DEADLINE = 180.0
"""Seconds after which a turn has failed, whatever the reason; those in which its limits refuse it do not count."""
LATER = frozenset({"unavailable", "overloaded", "draining", "rate_limit_exceeded", "told"})
"""Codes of refusals after which a client asks again."""
_CONNECT = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0
"""Bounds of the seconds after which a client opens a lost connection again; longer after each that follows."""


class RefusedError(Exception):
    """The server has refused; what for, and in how many seconds to come back."""

    def __init__(self, code: str, after: float = 0.2) -> None:
        super().__init__(code)
        self.code = code
        self.after = after


_LOST = (OSError, WebSocketException, httpx2.HTTPError, TimeoutError)


class Client(ABC):
    """Asks one question after another; a subclass knows how."""

    def __init__(self, name: str, tenant: str, urls: Sequence[str], seed: str) -> None:
        """Args: urls: of the gateways."""
        self.name = name
        self.tenant = tenant
        self.turns: list[TurnRecord] = []
        """Turns so far, the last of which may be running."""
        self._random = random.Random(seed)
        self._urls = urls
        self._cut: Callable[[], object] | None = None

    async def turn(self, case: Case) -> TurnRecord:
        """Ask, and come back until the turn has ended."""
        record = TurnRecord(self.name, self.tenant, case, monotonic())
        self.turns.append(record)
        answer, key = Answer(record), f"{self.name}-{len(self.turns)}"
        lost = 0
        while record.ended is None:
            before = answer.last
            try:
                await self._attempt(answer, key, self._random.choice(self._urls))
            except RefusedError as refused:
                if refused.code in LATER:
                    record.refusals.append((monotonic(), refused.code))
                    await asyncio.sleep(refused.after * self._random.uniform(1.0, 1.5))
                else:
                    record.fail(refused.code, monotonic())
            except _LOST:
                record.interruptions += 1
                lost = 0 if answer.last > before else lost + 1
                await asyncio.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**lost) * self._random.uniform(0.5, 1.0))
            finally:
                self._cut = None
            if record.ended is None and monotonic() > max(record.began, record.limited) + DEADLINE:
                record.fail("never ended", monotonic())
        return record

    def cut(self) -> None:
        """Break the connection, if there is one."""
        if self._cut is not None:
            self._cut()

    async def aclose(self) -> None:
        """Close what it keeps open between turns."""
        self.cut()

    @abstractmethod
    async def _attempt(self, answer: Answer, key: str, url: str) -> None:
        """Use one connection, until the turn has ended or the connection is lost."""

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key(self.tenant)}"}


class SocketClient(Client):
    """Over WebSocket; resumes after the last event that it has seen, at any gateway."""

    def __init__(self, name: str, tenant: str, urls: Sequence[str], seed: str, *, events: bool) -> None:
        """Args: events: whether it asks for Roundhouse's own events."""
        super().__init__(name, tenant, urls, seed)
        self._events = {"x-roundhouse-events": "true"} if events else {}

    async def _attempt(self, answer: Answer, key: str, url: str) -> None:
        address = f"{url.replace('http', 'ws')}/v1/responses"
        try:
            socket = await connect(
                address,
                additional_headers={**self._headers, **self._events},
                compression=None,
                open_timeout=_CONNECT,
                close_timeout=0.5,
                max_size=None,
            )
        except InvalidStatus as error:
            raise _refusal(error.response.status_code, error.response.headers, error.response.body or b"") from error
        try:
            self._cut = socket.transport.abort
            await self._converse(socket, answer, key)
        finally:
            socket.transport.abort()

    async def _converse(self, socket: ClientConnection, answer: Answer, key: str) -> None:
        if answer.id is None:
            body = {name: value for name, value in answer.record.case.body.items() if name != "stream"}
            await socket.send(json.dumps({"type": "response.create", "idempotency_key": key, **body}))
        else:
            asked = {"type": "response.resume", "response_id": answer.id, "starting_after": answer.last}
            await socket.send(json.dumps(asked))
        while True:
            async with asyncio.timeout(SILENCE):
                event = json.loads(await socket.recv())
            if event["type"] == "error":
                raise _refused(event["error"])
            if event["type"] != "roundhouse.draining" and answer.take(event, monotonic()):
                return


class StreamClient(Client):
    """Streams responses over HTTP; comes back with GET, or asks again under its idempotency key."""

    def __init__(self, name: str, tenant: str, urls: Sequence[str], seed: str) -> None:
        super().__init__(name, tenant, urls, seed)
        timeout = httpx2.Timeout(SILENCE, connect=_CONNECT)
        self._http = httpx2.AsyncClient(timeout=timeout, limits=httpx2.Limits(max_keepalive_connections=0))

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _attempt(self, answer: Answer, key: str, url: str) -> None:
        task = asyncio.create_task(self._stream(answer, key, url))
        self._cut = task.cancel
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if task.cancelled():
            raise ConnectionAbortedError
        try:
            task.result()
        except AttributeError as error:
            if error.name != "getpeername":
                raise
            raise ConnectionError("the gateway ended while anyio still asked the socket for its peer") from error

    async def _stream(self, answer: Answer, key: str, url: str) -> None:
        case = answer.record.case
        headers = {**self._headers, "idempotency-key": key}
        if answer.id is None or case.chat:
            answer.begin_again()
            sent = self._http.stream("POST", f"{url}{case.path}", json=case.body, headers=headers)
        else:
            place = {"stream": "true", "starting_after": str(answer.last)}
            sent = self._http.stream("GET", f"{url}/v1/responses/{answer.id}", params=place, headers=headers)
        async with sent as response:
            if response.status_code != 200:
                raise _refusal(response.status_code, response.headers, await response.aread())
            async for line in response.aiter_lines():
                if line.startswith("data: ") and self._take(line.removeprefix("data: "), answer):
                    return
        raise ConnectionError("the stream broke off")

    @staticmethod
    def _take(data: str, answer: Answer) -> bool:
        if data == "[DONE]":
            answer.record.ended = monotonic()
            return True
        event: dict[str, Any] = json.loads(data)
        if "error" in event and not event.get("type", "").startswith("response."):
            raise _refused(event["error"])
        if answer.record.case.chat:
            answer.take_chunk(event, monotonic())
            return False
        return answer.take(event, monotonic())


class TerminalClient(Client):
    """`roundhouse chat`, which knows one gateway only, and tells of a refusal instead of asking again."""

    async def _attempt(self, answer: Answer, key: str, url: str) -> None:
        record = answer.record
        chat = Chat(f"{url.replace('http', 'ws')}/v1/responses", api_key(self.tenant), record.case.body["model"])

        def write(text: str) -> None:
            record.text += text
            record.moments.append(monotonic())

        try:
            await chat.ask(record.case.body["input"], write)
            record.ending, record.ended = "shown", monotonic()
        except ChatError as error:
            if not record.text:  # it may have been refused: whoever sits there asks again
                raise RefusedError("told", 2.0) from error
            record.fail(f"told: {error}", monotonic())
        finally:
            await chat.close()


def _refused(error: dict[str, Any]) -> RefusedError:
    after = (error.get("headers") or {}).get("retry-after", 0.2)
    return RefusedError(error.get("code") or error.get("type") or "unknown", float(after))


def _refusal(status: int, headers: Any, body: bytes) -> Exception:
    try:
        code = json.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return ConnectionError(f"status {status}")
    return RefusedError(code, float(headers.get("retry-after", 0.2)))
