"""A load on a gateway, from a process of its own: clients that send one turn after the other and read every byte.

    python -m bench.load --dialect chat --port 8080 --clients 16 --turns 1000

The clients parse only what they must, so that they cost little beside what they measure. They speak four dialects:
`chat` (chat completions as server-sent events), `responses` (our WebSocket), `echo` (any WebSocket that answers a
message with `--chunks` messages) and `frames` (an engine's, at the unix socket `--path`). With `--rate` turns begin at
that rate by a Poisson process; one that finds all clients busy waits, and its wait counts. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import os
import random
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import Literal, get_args

import msgspec
import uvloop

from engine.wire import Generate, SamplingParams, Step, decode_server_frame, encode

Dialect = Literal["chat", "responses", "echo", "frames"]


class LoadOutcome(msgspec.Struct, frozen=True):
    """What the clients saw. Times in seconds."""

    ttft: list[float]
    """Seconds from when each turn should have begun to its first chunk."""
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
    rate: float | None = None
    seed: int = 0
    store: bool = True
    """Whether a gateway should store the answers that it gives over a socket."""


class Http:
    """One connection for chat completions."""

    first = b'"content":'

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._plan.port)
        self._head = "\r\n".join(
            [
                f"POST {self._plan.path} HTTP/1.1",
                f"Host: 127.0.0.1:{self._plan.port}",
                "Content-Type: application/json",
                *self._plan.headers,
            ]
        )

    async def turn(self, question: str) -> AsyncIterator[tuple[int, bool]]:
        body = json.dumps(
            {
                "model": self._plan.model,
                "messages": [{"role": "user", "content": question}],
                "stream": True,
                "temperature": 0,
                "max_tokens": 64,
            }
        ).encode()
        self._writer.write(f"{self._head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        tail = b""
        while True:
            data = await self._reader.read(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            if tail == b"" and not data.startswith(b"HTTP/1.1 200"):
                raise ConnectionError(data[:300].decode("latin-1"))
            yield data.count(b"data:"), self.first in data
            tail = (tail + data)[-64:]
            if tail.endswith(b"0\r\n\r\n"):
                return

    def close(self) -> None:
        self._writer.close()


class WebSocket:
    """One WebSocket: RFC 6455 as far as an answering server needs it of its client."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan

    async def open(self) -> None:
        self._reader, self._writer = await self._connect()
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {self._plan.path} HTTP/1.1",
            f"Host: 127.0.0.1:{self._plan.port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
            *self._plan.headers,
        ]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            raise ConnectionError(head.decode("latin-1"))
        self._buffer = b""

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._plan.port)

    async def turn(self, question: str) -> AsyncIterator[tuple[int, bool]]:
        if self._plan.dialect == "echo":
            message, first, ends = question.encode(), b"", self._plan.chunks
        else:
            create = {"type": "response.create", "model": self._plan.model, "input": question, "temperature": 0}
            create |= {"max_output_tokens": 64, "store": self._plan.store}
            message, first, ends = json.dumps(create).encode(), b"output_text.delta", 0
        self._send(message)
        received = 0
        while True:
            data = await self._reader.read(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._buffer += data
            messages = self._messages()
            received += len(messages)
            yield len(messages), any(first in each for each in messages)
            if ends and received >= ends:
                return
            for each in messages:
                if each.startswith((b'{"type":"response.completed"', b'{"type":"response.incomplete"')):
                    return
                if each.startswith((b'{"type":"error"', b'{"type":"response.failed"')):
                    raise ConnectionError(each[:300].decode())

    def _send(self, message: bytes, opcode: int = 0x1) -> None:
        mask = os.urandom(4)
        first, length = 0x80 | opcode, len(message)
        head = struct.pack("!BB", first, 0x80 | length) if length < 126 else struct.pack("!BBH", first, 0xFE, length)
        repeated = (mask * (length // 4 + 1))[:length]
        masked = (int.from_bytes(message) ^ int.from_bytes(repeated)).to_bytes(length)
        self._writer.write(head + mask + masked)

    def _messages(self) -> list[bytes]:
        """Whole messages received; servers send them unmasked and, here, unfragmented."""
        found, at, buffer = [], 0, self._buffer
        while len(buffer) - at >= 2:
            length, start = buffer[at + 1] & 0x7F, at + 2
            if length == 126:
                length, start = int.from_bytes(buffer[at + 2 : at + 4]), at + 4
            elif length == 127:
                length, start = int.from_bytes(buffer[at + 2 : at + 10]), at + 10
            if len(buffer) < start + length:
                break
            if buffer[at] & 0x0F in (1, 2):
                found.append(buffer[start : start + length])
            at = start + length
        self._buffer = buffer[at:]
        return found

    def close(self) -> None:
        self._writer.close()


class Frames(WebSocket):
    """One connection to an engine, as the gateway has it: it shows what an answer takes without a gateway."""

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self._plan.path)

    async def turn(self, question: str) -> AsyncIterator[tuple[int, bool]]:
        self._send(encode(Generate(question, [5] * 30, SamplingParams(max_tokens=64))), opcode=0x2)
        while True:
            data = await self._reader.read(65536)
            if not data:
                raise ConnectionError("the engine closed the connection")
            self._buffer += data
            steps = [decode_server_frame(each) for each in self._messages()]
            outputs = [output for step in steps if isinstance(step, Step) for output in step.outputs]
            yield len(outputs), bool(outputs)
            if any(output.finish for output in outputs):
                return


MAKE: dict[Dialect, Callable[[LoadPlan], Http | WebSocket]] = {
    "chat": Http,
    "responses": WebSocket,
    "echo": WebSocket,
    "frames": Frames,
}


async def run(plan: LoadPlan) -> LoadOutcome:
    """Send all turns and wait for their ends."""
    make = MAKE[plan.dialect]
    connections = [make(plan) for _ in range(plan.clients)]
    await asyncio.gather(*(each.open() for each in connections))
    generator = random.Random(plan.seed)
    ttft: list[float] = []
    events = errors = 0
    number = itertools.count()
    begun = time.perf_counter()
    due: asyncio.Queue[float] = asyncio.Queue()

    async def arrivals() -> None:
        assert plan.rate is not None
        at = begun
        for _ in range(plan.turns):
            at += generator.expovariate(plan.rate)
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            due.put_nowait(at)

    async def client(connection: Http | WebSocket) -> None:
        nonlocal events, errors
        while True:
            if plan.rate is None:
                if next(number) >= plan.turns:
                    return
                start = time.perf_counter()
            else:
                start = await due.get()
            seen = False
            try:
                async for count, text in connection.turn(
                    f"What is {generator.getrandbits(40)} and why does it matter?"
                ):
                    events += count
                    if text and not seen:
                        seen = True
                        ttft.append(time.perf_counter() - start)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
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
        await arrivals()
        await due.join()
        for task in clients:
            task.cancel()
    seconds = time.perf_counter() - begun
    for each in connections:
        each.close()
    return LoadOutcome(ttft, seconds, events, errors)


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
    parser.add_argument("--rate", type=float, help="turns per second; without it every client is always busy")
    parser.add_argument("--seed", type=int, default=0)
    plan = LoadPlan(**vars(parser.parse_args()))
    print(msgspec.json.encode(uvloop.run(run(plan))).decode(), flush=True)


if __name__ == "__main__":
    main()
