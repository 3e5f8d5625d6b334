"""A load on a gateway, from a process of its own: clients that send one turn after the other and read every byte.

    python -m bench.load --dialect chat --port 8080 --clients 16 --turns 1000

Clients that are always busy show what a gateway can do at most; what its users see under a load that does not wait for
it is measured with `roundhouse load`, whose connections these are. The clients parse only what they must, so that they
cost little beside what they measure. They speak four dialects: `chat` (chat completions as server-sent events),
`responses` (our WebSocket), `echo` (any WebSocket that answers a message with `--chunks` messages) and `frames` (an
engine's, at the unix socket `--path`). With `--rate` turns begin at that rate by a Poisson process; one that finds all
clients busy waits, and its wait counts. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import time
from typing import Literal, Protocol, get_args

import msgspec
import uvloop

from engine.wire import Generate, SamplingParams, Step, decode_server_frame, encode
from load.arrivals import poisson
from load.connections.address import Address
from load.connections.http import HttpConnection, RequestRefused
from load.connections.websocket import WebSocketWire

Dialect = Literal["chat", "responses", "echo", "frames"]
_TEXT = re.compile(rb'"content": ?"[^"]')
"""Text of a chunk; the one that only says whose it is has none."""


class LoadOutcome(msgspec.Struct, frozen=True):
    """What the clients saw. Times in seconds."""

    ttft: list[float]
    """Seconds from when each turn should have begun to its first text."""
    whole: list[float]
    """Seconds from when each turn should have begun to its end."""
    seconds: float
    """Seconds from the first turn's beginning to the last one's end."""
    events: int
    errors: int


class LoadPlan(msgspec.Struct, frozen=True):
    """Requests to send, and their target."""

    dialect: Dialect
    port: int
    clients: int = 1
    turns: int = 100
    path: str = "/v1/chat/completions"
    headers: list[str] = []
    model: str = "auto"
    chunks: int = 32
    tokens: int = 64
    """Most tokens of an answer."""
    rate: float | None = None
    seed: int = 0
    store: bool = True
    """Whether a gateway should store the answers that it gives over a socket."""


class TurnClient(Protocol):
    """One connection, with one turn at a time."""

    async def open(self) -> None: ...

    async def turn(self, question: str) -> Received:
        """Ask, and wait for the end of the answer.

        Raises:
            ConnectionError, RequestRefused: it did not come to its end.
        """

    def close(self) -> None: ...


class Received:
    """What has come of one answer."""

    def __init__(self) -> None:
        self.events = 0
        self.first: float | None = None
        """When the first text came, by `time.perf_counter`."""

    def take(self, events: int, text: bool, now: float) -> None:
        self.events += events
        if text and self.first is None:
            self.first = now


class HttpClient:
    """Chat completions."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan

    async def open(self) -> None:
        self._connection = await HttpConnection.open(_address(self._plan), _headers(self._plan))

    async def turn(self, question: str) -> Received:
        if not self._connection.usable:
            await self.open()
        body = {
            "model": self._plan.model,
            "messages": [{"role": "user", "content": question}],
            "stream": True,
            "temperature": 0,
            "max_tokens": self._plan.tokens,
        }
        received = Received()

        def receive(data: bytes, now: float) -> None:
            received.take(data.count(b"data:"), _TEXT.search(data) is not None, now)

        await self._connection.request("POST", self._plan.path, json.dumps(body).encode(), receive)
        return received

    def close(self) -> None:
        self._connection.close()


class SocketClient:
    """A WebSocket with Responses, or with echoes."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan

    async def open(self) -> None:
        self._wire = await WebSocketWire.open(_address(self._plan), self._plan.path, _headers(self._plan))

    async def turn(self, question: str) -> Received:
        received, plan = Received(), self._plan
        if plan.dialect == "echo":

            def echoed(_: bytes, now: float) -> bool:
                received.take(1, True, now)
                return received.events >= plan.chunks

            await self._wire.exchange(question.encode(), echoed)
            return received

        def answered(message: bytes, now: float) -> bool:
            received.take(1, b"output_text.delta" in message, now)
            if message.startswith((b'{"type":"error"', b'{"type":"response.failed"')):
                raise ConnectionError(message[:300].decode())
            return message.startswith((b'{"type":"response.completed"', b'{"type":"response.incomplete"'))

        create = {"type": "response.create", "model": plan.model, "input": question, "temperature": 0}
        create |= {"max_output_tokens": plan.tokens, "store": plan.store}
        await self._wire.exchange(json.dumps(create).encode(), answered)
        return received

    def close(self) -> None:
        self._wire.close()


class FramesClient(SocketClient):
    """One connection to an engine, as the gateway has it: it shows what an answer takes without a gateway."""

    async def open(self) -> None:
        self._wire = await WebSocketWire.shake_hands(self._connect())

    async def _connect(self) -> WebSocketWire:
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_unix_connection(lambda: WebSocketWire("ws://localhost/", {}), self._plan.path)
        return wire

    async def turn(self, question: str) -> Received:
        received = Received()

        def stepped(message: bytes, now: float) -> bool:
            step = decode_server_frame(message)
            outputs = step.outputs if isinstance(step, Step) else []
            received.take(len(outputs), bool(outputs), now)
            return any(output.finish for output in outputs)

        ask = Generate(question, [5] * 30, SamplingParams(max_tokens=self._plan.tokens))
        await self._wire.exchange(encode(ask), stepped, binary=True)
        return received


def _address(plan: LoadPlan) -> Address:
    return Address("127.0.0.1", plan.port, secure=False, path="")


def _headers(plan: LoadPlan) -> dict[str, str]:
    return dict(each.split(": ", 1) for each in plan.headers)


CLIENTS: dict[Dialect, type[HttpClient] | type[SocketClient]] = {
    "chat": HttpClient,
    "responses": SocketClient,
    "echo": SocketClient,
    "frames": FramesClient,
}


async def run(plan: LoadPlan) -> LoadOutcome:
    """Send all turns and wait for their ends."""
    connections = [CLIENTS[plan.dialect](plan) for _ in range(plan.clients)]
    await asyncio.gather(*(each.open() for each in connections))
    generator = random.Random(plan.seed)
    ttft: list[float] = []
    whole: list[float] = []
    events = errors = 0
    number = itertools.count()
    begun = time.perf_counter()
    due: asyncio.Queue[float] = asyncio.Queue()

    async def arrivals(rate: float) -> None:
        for after in itertools.islice(poisson(rate, generator), plan.turns):
            await asyncio.sleep(max(0.0, begun + after - time.perf_counter()))
            due.put_nowait(begun + after)

    async def client(connection: TurnClient) -> None:
        nonlocal events, errors
        while True:
            if plan.rate is None:
                if next(number) >= plan.turns:
                    return
                start = time.perf_counter()
            else:
                start = await due.get()
            try:
                received = await connection.turn(f"What is {generator.getrandbits(40)} and why does it matter?")
                events += received.events
                whole.append(time.perf_counter() - start)
                if received.first is not None:
                    ttft.append(received.first - start)
            except (ConnectionError, RequestRefused) as error:
                errors += 1
                if errors == 1:
                    print(f"first error: {error}", flush=True)
                await connection.open()
            if plan.rate is not None:
                due.task_done()

    clients = [asyncio.create_task(client(each)) for each in connections]
    if plan.rate is None:
        await asyncio.gather(*clients)
    else:
        await arrivals(plan.rate)
        await due.join()
        for task in clients:
            task.cancel()
    seconds = time.perf_counter() - begun
    for each in connections:
        each.close()
    return LoadOutcome(ttft, whole, seconds, events, errors)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("--dialect", choices=get_args(Dialect), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("--header", dest="headers", action="append", default=[])
    parser.add_argument("--model", default="auto")
    parser.add_argument("--chunks", type=int, default=32, help="messages of one echo")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--rate", type=float, help="turns per second; without it every client is always busy")
    parser.add_argument("--seed", type=int, default=0)
    plan = LoadPlan(**vars(parser.parse_args()))
    print(msgspec.json.encode(uvloop.run(run(plan))).decode(), flush=True)


if __name__ == "__main__":
    main()
