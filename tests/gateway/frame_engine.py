"""An engine as a gateway sees it: real frames on a real socket, whose answers a test can tell apart by adapter."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed

from engine.wire import (
    PROTOCOL_VERSION,
    Announce,
    Cancel,
    ClientFrame,
    FinishReason,
    Generate,
    Hello,
    Load,
    ModelInfo,
    Output,
    Pin,
    Ready,
    Step,
    TokenIdLogprob,
    Usage,
    decode_client_frame,
    encode,
)

LOAD = Load(0, 0, 0, 64, 64, 0, 0, 0, 0, 0, 0.0)
_HEARTBEAT = 1.0
"""Seconds between frames that tell nothing but the load, as of a real engine: a silent one counts as dead."""


class FrameEngine:
    """Answers every request with the same token again and again: the one of its adapter version."""

    def __init__(self, path: Path, tokens: dict[str | None, int]) -> None:
        self.address = f"unix://{path}"
        self.tokens = tokens
        """Answering token by adapter version; None is the base model."""
        self.frames: list[ClientFrame] = []
        """Frames that were received, in order, without `Hello`."""
        self.gate = asyncio.Event()
        """Until it is set, requests get no token."""
        self.gate.set()
        self.failing = False
        """Whether it closes the connection instead of answering."""
        self.load = LOAD
        """The load that it reports."""
        self.finish: FinishReason = "length"
        """Reason with which answers end."""
        self.script: Callable[[Generate], list[list[int]]] | None = None
        """Answers in place of the token: the tokens of each step. The end waits while the gate is closed."""
        self.pace: Callable[[], Awaitable[None]] | None = None
        """Awaited after each step of a script."""
        self.revision = "revision"
        """Revision of the model that it says it serves."""
        self._path = path
        self._steps: set[asyncio.Task[None]] = set()

    @property
    def generated(self) -> list[Generate]:
        return [frame for frame in self.frames if isinstance(frame, Generate)]

    @property
    def pinned(self) -> list[list[str]]:
        return [frame.adapters for frame in self.frames if isinstance(frame, Pin)]

    @property
    def announced(self) -> list[str]:
        return [frame.adapter for frame in self.frames if isinstance(frame, Announce)]

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FrameEngine]:
        async with unix_serve(self._handle, str(self._path)):
            yield self
            for task in self._steps:
                task.cancel()

    async def _handle(self, connection: ServerConnection) -> None:
        model = ModelInfo("frames", self.revision, 4096, 320, (2,), 16, "cpu", "float32")
        await connection.send(encode(Ready(PROTOCOL_VERSION, model, self.load)))
        beating = asyncio.create_task(self._beat(connection))
        self._steps.add(beating)
        beating.add_done_callback(self._steps.discard)
        with contextlib.suppress(ConnectionClosed):
            async for message in connection:
                assert isinstance(message, bytes)
                frame = decode_client_frame(message)
                if not isinstance(frame, Hello):
                    self.frames.append(frame)
                if isinstance(frame, Generate):
                    task = asyncio.create_task(self._answer(connection, frame))
                    self._steps.add(task)
                    task.add_done_callback(self._steps.discard)
                elif isinstance(frame, Cancel):
                    await self._cancel(connection, frame)

    async def _beat(self, connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(_HEARTBEAT)
                await connection.send(encode(Step([], self.load)))

    async def _cancel(self, connection: ServerConnection, frame: Cancel) -> None:
        await connection.send(encode(Step([Output(frame.id, finish="cancelled")], self.load)))

    async def _answer(self, connection: ServerConnection, request: Generate) -> None:
        if self.script is not None and not self.failing:
            await self._perform(connection, request, self.script(request))
            return
        await self.gate.wait()
        if self.failing:
            await connection.close()
            return
        count = request.sampling.max_tokens
        usage = Usage(len(request.prompt), 0, count, 0.0)
        with contextlib.suppress(ConnectionClosed):
            for index in range(count):
                last = index == count - 1
                output = Output(
                    request.id,
                    [self.tokens[request.adapter]],
                    finish=self.finish if last else None,
                    usage=usage if index == 0 or last else None,
                )
                await connection.send(encode(Step([output], self.load)))
                await asyncio.sleep(0)

    async def _perform(self, connection: ServerConnection, request: Generate, steps: list[list[int]]) -> None:
        usage = Usage(len(request.prompt), 0, sum(map(len, steps)), 0.0)
        with contextlib.suppress(ConnectionClosed):
            for index, tokens in enumerate(steps):
                first = index == 0
                likely = [TokenIdLogprob(token, -0.1) for token in tokens]
                asked = likely if request.sampling.logprobs is not None else None
                output = Output(request.id, tokens, logprobs=asked, usage=usage if first else None)
                await connection.send(encode(Step([output], self.load)))
                await (self.pace() if self.pace else asyncio.sleep(0))
            await self.gate.wait()
            await connection.send(encode(Step([Output(request.id, finish=self.finish, usage=usage)], self.load)))
