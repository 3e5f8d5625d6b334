"""Asks the embedder for vectors: connects again by itself, and never waits longer than it was told to.

An embedder that is away, starting, busy or slow is a refusal, which every caller can do without. After some failures in
a row nobody asks for a while, so that one that hangs does not cost each turn its deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache.embedding.wire import MAX_TEXTS, EmbedderInfo, EmbedReply, EmbedRequest, Refusal, frame, read

log = logging.getLogger("roundhouse.embedder")

_RECONNECT = 0.25, 5.0
"""Seconds until the next attempt to connect: the first wait, and the longest."""
_HELLO = 10.0
"""Seconds within which the embedder must introduce itself."""
_EXPECTED = (OSError, ValueError, asyncio.IncompleteReadError)
"""Errors that end a connection without a fault of this client's."""
FAILURES, PAUSE = 3, 5.0
"""After so many missed deadlines in a row, turns do not ask for so many seconds."""


class EmbeddedTexts(Struct, frozen=True):
    """Vectors of length 1, shape (texts, dimensions), and each text's number of tokens."""

    vectors: NDArray[np.float32]
    tokens: list[int]


class EmbedRefused(Exception):
    """The embedder gives no vectors.

    Args:
        reason: the embedder's, or `away`.
        index: of the text that is too long.
    """

    def __init__(self, reason: Refusal | Literal["away"], index: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.index = index


class EmbedderClient:
    """A connection to the embedder at a unix socket, kept open in the background.

    Args:
        on_fault: called while an exception that nobody expected is being handled; the connection is then made anew.
    """

    def __init__(self, path: Path, *, on_fault: Callable[[], None] = lambda: log.exception("a fault of ours")) -> None:
        self._path = path
        self._on_fault = on_fault
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[EmbedReply]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._missed = 0
        self._paused_until = 0.0
        self.ready = asyncio.Event()
        """Set while connected."""
        self.hello: EmbedderInfo | None = None
        """Description of the embedder that answered last; it stays while the embedder is away."""

    @property
    def available(self) -> bool:
        """Whether asking is likely to be worth a turn's time."""
        return self._writer is not None and monotonic() >= self._paused_until

    async def start(self) -> None:
        """Start connecting in the background."""
        self._task = asyncio.create_task(self._run(), name="embedder")

    async def aclose(self) -> None:
        """Close the connection; waiting requests are refused."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def embed(self, texts: Sequence[str], *, seconds: float, urgent: bool = True) -> EmbeddedTexts:
        """Embed up to 64 texts within so many seconds.

        Raises:
            EmbedRefused: there are none.
        """
        if len(texts) > MAX_TEXTS:
            raise ValueError(f"{len(texts)} texts; at most {MAX_TEXTS}")
        if urgent and not self.available:
            raise EmbedRefused("away")
        answer, hello = await self._ask(EmbedRequest(next(self._ids), list(texts), urgent, seconds))
        vectors = np.frombuffer(answer.vectors, "<f4").reshape(len(texts), hello.dimensions)
        return EmbeddedTexts(vectors, answer.tokens)

    async def count(self, texts: Sequence[str], *, seconds: float) -> list[int]:
        """Count the tokens of each text, however many the model would read.

        Raises:
            EmbedRefused: they could not be counted.
        """
        answer, _ = await self._ask(EmbedRequest(next(self._ids), list(texts), False, seconds, count=True))
        return answer.tokens

    async def _ask(self, ask: EmbedRequest) -> tuple[EmbedReply, EmbedderInfo]:
        writer, hello = self._writer, self.hello
        if writer is None or hello is None:
            raise EmbedRefused("away")
        waiter: asyncio.Future[EmbedReply] = asyncio.get_running_loop().create_future()
        self._waiting[ask.id] = waiter
        try:
            writer.write(frame(ask))
            async with asyncio.timeout(ask.seconds):
                answer = await waiter
        except TimeoutError:
            self._late()
            raise EmbedRefused("late") from None
        finally:
            self._waiting.pop(ask.id, None)
        if answer.refusal is not None:
            raise EmbedRefused(answer.refusal, answer.index)
        self._missed = 0
        return answer, hello

    def _late(self) -> None:
        self._missed += 1
        if self._missed >= FAILURES:
            self._paused_until = monotonic() + PAUSE

    async def _run(self) -> None:
        first, longest = _RECONNECT
        pause = first
        while True:
            try:
                await self._connected()
                pause = first
            except Exception as error:  # whatever it was costs this connection, never the next one
                if not isinstance(error, _EXPECTED):
                    self._on_fault()
                elif not isinstance(error, FileNotFoundError | ConnectionRefusedError):
                    log.warning("the connection to the embedder broke", extra={"error": type(error).__name__})
                pause = first if self.ready.is_set() else min(2 * pause, longest)
            finally:
                self._gone()
            await asyncio.sleep(pause)

    async def _connected(self) -> None:
        """Read answers until the connection ends, which is an error."""
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            async with asyncio.timeout(_HELLO):
                self.hello = await read(reader, msgspec.msgpack.Decoder(EmbedderInfo))
            self._writer, self._missed, self._paused_until = writer, 0, 0.0
            self.ready.set()
            decoder = msgspec.msgpack.Decoder(EmbedReply)
            while True:
                answer = await read(reader, decoder)
                waiter = self._waiting.get(answer.id)
                if waiter is not None and not waiter.done():
                    waiter.set_result(answer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _gone(self) -> None:
        self._writer = None
        self.ready.clear()
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(EmbedRefused("away"))
