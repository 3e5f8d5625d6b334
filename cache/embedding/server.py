"""Answers gateways' requests for embeddings on a unix socket: one thread computes, batch after batch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from cache.embedding.queue import EmbedQueue, Pending
from cache.embedding.wire import MAX_CHARACTERS, MAX_TEXTS, EmbedderInfo, EmbedReply, EmbedRequest, Refusal, frame, read

log = logging.getLogger("roundhouse.embedder")

_UNREAD = 16 * 1024 * 1024
"""Bytes of answers that a connection may leave unread before it is closed."""


T = TypeVar("T")


class EmbeddingModel(Protocol):
    """The interface of a model, which `cache.embedding.model.SentenceModel` implements."""

    @property
    def max_tokens(self) -> int: ...

    def lengths(self, texts: Sequence[str]) -> list[int]: ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]: ...


class _Request:
    """An `EmbedRequest` in progress: collects the vectors of its texts."""

    def __init__(self, ask: EmbedRequest, writer: asyncio.StreamWriter) -> None:
        self.id = ask.id
        self.writer = writer
        deadline = monotonic() + ask.seconds
        self.texts = [Pending(self, index, text, deadline) for index, text in enumerate(ask.texts)]
        self.vectors: list[bytes] = [b""] * len(ask.texts)
        self.tokens = [0] * len(ask.texts)
        self.missing = len(ask.texts)

    def got(self, index: int, vector: bytes, tokens: int) -> None:
        self.vectors[index], self.tokens[index] = vector, tokens
        self.missing -= 1
        if not self.missing:
            self._send(EmbedReply(self.id, b"".join(self.vectors), self.tokens))

    def counted(self, tokens: list[int]) -> None:
        if self.missing:
            self.missing = 0
            self._send(EmbedReply(self.id, b"", tokens))

    def refuse(self, refusal: Refusal, index: int = 0) -> None:
        """End the request with a refusal, unless it has ended."""
        if self.missing:
            self.missing = 0
            self.cancel()
            self._send(EmbedReply(self.id, refusal=refusal, index=index))

    def cancel(self) -> None:
        for pending in self.texts:
            pending.cancelled = True

    def _send(self, answer: EmbedReply) -> None:
        if self.writer.is_closing():
            return
        self.writer.write(frame(answer))
        if self.writer.transport.get_write_buffer_size() > _UNREAD:
            log.warning("a gateway does not read its answers; its connection is closed")
            self.writer.transport.abort()


class EmbedderServer:
    """Serves embeddings to all connections, in common batches.

    Args:
        hello: told to everyone who connects.
        queue: most texts that wait.
    """

    def __init__(self, model: EmbeddingModel, hello: EmbedderInfo, *, queue: int = 4096) -> None:
        self._model = model
        self._hello = hello
        self._queue = EmbedQueue(queue)
        self._work = asyncio.Event()
        self._connections: set[asyncio.StreamWriter] = set()
        self._thread = ThreadPoolExecutor(1, "embedder")
        self._counting: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Serve on a unix socket that only this user may open; a stale one is replaced."""
        with _bound(path) as bound:
            server = await asyncio.start_unix_server(self._connected, sock=bound)
            computing = asyncio.create_task(self._compute())
            try:
                yield
            finally:
                computing.cancel()
                server.close()
                for writer in list(self._connections):
                    writer.transport.abort()
                await asyncio.gather(computing, return_exceptions=True)
                self._thread.shutdown(wait=False)
                await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: set[_Request] = set()
        decoder = msgspec.msgpack.Decoder(EmbedRequest)
        self._connections.add(writer)
        try:
            writer.write(frame(self._hello))
            while True:
                ask = await read(reader, decoder)
                requests = {request for request in requests if request.missing}
                request = _Request(ask, writer)
                requests.add(request)
                self._accept(ask, request)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except ValueError as error:
            log.warning("a gateway sent what cannot be read; its connection is closed", extra={"error": str(error)})
        finally:
            self._connections.discard(writer)
            for request in requests:
                request.cancel()
            writer.close()

    def _accept(self, ask: EmbedRequest, request: _Request) -> None:
        if not ask.texts:
            request.writer.write(frame(EmbedReply(ask.id)))
            return
        if len(ask.texts) > MAX_TEXTS:
            request.refuse("busy")
            return
        for index, text in enumerate(ask.texts):
            if len(text) > MAX_CHARACTERS:
                request.refuse("too_long", index)
                return
        if ask.count:
            task = asyncio.create_task(self._count(request))
            self._counting.add(task)
            task.add_done_callback(self._counting.discard)
        elif self._queue.add(request.texts, urgent=ask.urgent):
            self._work.set()
        else:
            request.refuse("busy")

    async def _count(self, request: _Request) -> None:
        texts = [pending.text for pending in request.texts]
        try:
            request.counted(await self._in_thread(self._model.lengths, texts))
        except Exception:
            log.exception("the tokenizer failed on %d texts", len(texts))
            request.refuse("failed")

    async def _in_thread(self, work: Callable[[list[str]], T], texts: list[str]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, texts)

    async def _compute(self) -> None:
        while True:
            await self._work.wait()
            batch, late = self._queue.take(monotonic())
            for pending in late:
                _owner(pending).refuse("late")
            if not batch:
                if not len(self._queue):
                    self._work.clear()
                continue
            try:
                vectors, tokens = await self._in_thread(self._embed, [pending.text for pending in batch])
            except Exception:  # whatever a model may raise costs this batch, not the process
                log.exception("the model failed on a batch of %d texts", len(batch))
                for pending in batch:
                    _owner(pending).refuse("failed")
                continue
            for pending, vector, length in zip(batch, vectors, tokens, strict=True):
                if pending.cancelled:
                    continue
                if vector is None:
                    _owner(pending).refuse("too_long", pending.index)
                else:
                    _owner(pending).got(pending.index, vector, length)

    def _embed(self, texts: list[str]) -> tuple[list[bytes | None], list[int]]:
        """Vectors, None for texts that the model would cut off, and numbers of tokens."""
        tokens = self._model.lengths(texts)
        whole = [index for index, length in enumerate(tokens) if length <= self._model.max_tokens]
        found: list[bytes | None] = [None] * len(texts)
        if whole:
            for index, vector in zip(whole, self._model.encode([texts[index] for index in whole]), strict=True):
                found[index] = vector.tobytes()
        return found, tokens


@contextlib.contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        bound.bind(str(path))
        path.chmod(0o600)
        try:
            yield bound
        finally:
            path.unlink(missing_ok=True)


def _owner(pending: Pending) -> _Request:
    assert isinstance(pending.owner, _Request)
    return pending.owner
