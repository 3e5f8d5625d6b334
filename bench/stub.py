"""What stands behind a gateway that is measured: answers of a fixed number of chunks, as fast as they can be sent.

    python -m bench.stub --chunks 32 --http 9100 --frames /tmp/stub

One process serves both: an OpenAI-compatible server for HTTP gateways, and engines that speak our frames for our own.
A step gives each running request one token, as an engine does, and goes out as one message.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import cast

import uvloop
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed

from engine.wire import (
    PROTOCOL_VERSION,
    Cancel,
    Generate,
    Load,
    ModelInfo,
    Output,
    Ready,
    Step,
    Usage,
    decode_client_frame,
    encode,
)

TIERS = ("small", "medium", "large")
WORD = " chunk"
HEARTBEAT = 1.0
BACKLOG = 512
"""Clients that may connect at once: a unix socket refuses the next one, where TCP would let it wait."""


class ModelServer(asyncio.Protocol):
    """`POST /v1/chat/completions` with `stream: true`, and nothing else, without a framework in the way.

    Args:
        ttft: seconds before the first chunk.
        itl: seconds from when a chunk is due until the next one is.
    """

    def __init__(self, chunks: int, ttft: float, itl: float) -> None:
        self._chunks = chunks
        self._ttft = ttft
        self._itl = itl
        self._received = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).lower()
            length = 0
            for line in head.split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name == b"content-length":
                    length = int(value)
            if len(self._received) < end + 4 + length:
                return
            del self._received[: end + 4 + length]
            self._task = asyncio.ensure_future(self._answer())

    async def _answer(self) -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        begun = time.perf_counter()
        for index in range(self._chunks):
            # Not a pause after the one before: a busy machine would add to each.
            due = begun + self._ttft + index * self._itl
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            delta = {"content": WORD} if index else {"role": "assistant", "content": WORD}
            self._event({"index": 0, "delta": delta, "finish_reason": None})
        self._event({"index": 0, "delta": {}, "finish_reason": "stop"})
        self._chunk(b"data: [DONE]\n\n")
        self._transport.write(b"0\r\n\r\n")

    def _event(self, choice: dict[str, object]) -> None:
        event = {"id": "stub", "object": "chat.completion.chunk", "created": 0, "model": "stub", "choices": [choice]}
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%s\r\n" % (len(data), data))


class StubEngine:
    """One connection of a gateway to an engine whose steps take no time."""

    def __init__(self, chunks: int, token: int) -> None:
        self._chunks = chunks
        self._token = token
        self._running: dict[str, tuple[int, int]] = {}
        """Prompt tokens and generated tokens, by request."""
        self._work = asyncio.Event()

    async def serve(self, connection: ServerConnection) -> None:
        model = ModelInfo("stub", "stub", 2048, 4096, (2,), 16, "cpu", "float32")
        await connection.send(encode(Ready(PROTOCOL_VERSION, model, self._load)))
        stepping = asyncio.create_task(self._step(connection))
        with contextlib.suppress(ConnectionClosed):
            async for message in connection:
                assert isinstance(message, bytes)
                match decode_client_frame(message):
                    case Generate(id=id, prompt=prompt):
                        self._running[id] = (len(prompt), 0)
                        self._work.set()
                    case Cancel(id=id):
                        self._running.pop(id, None)
        stepping.cancel()

    @property
    def _load(self) -> Load:
        return Load(len(self._running), 0, 0, 1024, 1024, 0, 0, 0, 0, 0, 0.0)

    async def _step(self, connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                if not self._running:
                    self._work.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._work.wait(), HEARTBEAT)
                outputs = [self._output(id) for id in list(self._running)]
                await connection.send(encode(Step(outputs, self._load)))
                await asyncio.sleep(0)

    def _output(self, id: str) -> Output:
        prompt, done = self._running[id]
        done += 1
        self._running[id] = (prompt, done)
        last = done >= self._chunks
        usage = Usage(prompt, 0, done, 0.0) if last or done == 1 else None
        if last:
            del self._running[id]
        return Output(id, [self._token], finish="length" if last else None, usage=usage)


async def serve(chunks: int, http: int, frames: Path, token: int, ttft: float, itl: float) -> None:
    """Serve until the process is ended; says `ready` on standard output first."""
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: ModelServer(chunks, ttft, itl), "127.0.0.1", http, backlog=BACKLOG)
    async with contextlib.AsyncExitStack() as stack:
        for tier in TIERS:

            async def handle(connection: ServerConnection) -> None:
                await StubEngine(chunks, token).serve(connection)

            await stack.enter_async_context(
                unix_serve(handle, str(frames / f"{tier}.sock"), compression=None, ping_interval=None, backlog=BACKLOG)
            )
        print("ready", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stub", description=__doc__)
    parser.add_argument("--chunks", type=int, default=32)
    parser.add_argument("--http", type=int, required=True, help="port of the OpenAI-compatible server")
    parser.add_argument("--frames", type=Path, required=True, help="folder for the engines' sockets")
    parser.add_argument("--token", type=int, required=True, help="the token that engines answer with")
    parser.add_argument("--ttft", type=float, default=0.0, help="seconds before the first chunk over HTTP")
    parser.add_argument("--itl", type=float, default=0.0, help="seconds between chunks over HTTP")
    uvloop.run(serve(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
