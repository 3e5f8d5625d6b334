"""One answer as its consumer sees it: an async iterator of deltas with a result at the end."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Self

import msgspec

from engine.client.conversation import AnswerPart
from engine.text.detokenizer import StopMatcher
from engine.wire import FinishReason, TokenIdLogprob, Usage


class Delta(msgspec.Struct, frozen=True):
    """Text and tokens that came since the last delta.

    `token_ids` are the tokens that `text` is made of: a token is held back with its text, and the token that ended the
    answer is not shown. `logprobs` has one entry per token if the request asked for them.
    """

    text: str
    token_ids: list[int]
    logprobs: list[TokenIdLogprob] | None = None
    parts: Sequence[AnswerPart] = ()
    """What the server has said, in order, where it answers a conversation and tells no tokens; `text` is theirs."""


class Timings(msgspec.Struct, frozen=True):
    """Seconds since `generate` was called, on the client's clock."""

    first_token: float
    total: float


class GenerationResult(msgspec.Struct, frozen=True):
    """How a generation ended. `stop` is the stop string that ended it, if one did."""

    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    stop: str | None = None
    filtered: bool = False
    """Whether the server has ended the answer because of what it says."""


class AnswerStream(AsyncIterator[Delta], ABC):
    """Deltas of one answer. Leaving it early ends the request in the server.

    Use it as `async with client.generate(...) as generation:` so that leaving the block for any reason cancels what
    has not finished. Iteration raises `EngineGone` or `RequestFailed`; when it ends without, `result` is set.
    """

    def __init__(self, id: str, prompt_tokens: int, cancel: Callable[[str], None], stop: Sequence[str]) -> None:
        self.id = id
        """Id of the request in the server that has it now."""
        self.prompt_logprobs: list[TokenIdLogprob | None] = []
        """Log-probabilities of the prompt, if asked for: complete with the first delta; the first entry is None."""
        self._cancel = cancel
        self._stops = StopMatcher(stop)
        self._begun = time.monotonic()
        self._first_token: float | None = None
        self._usage = Usage(prompt_tokens, cached_tokens=0, output_tokens=0, queue_seconds=0.0)
        self._given = self._done = 0
        """Counts of tokens: up to the last delta; up to the last delta that the consumer is done with."""
        self._changed = asyncio.Event()
        self._heard = False
        self._delivered = False
        self._ended = False
        self._result: GenerationResult | None = None
        self._error: Exception | None = None

    @property
    def result(self) -> GenerationResult:
        """How the generation ended.

        Raises:
            RuntimeError: it has not ended, or not by itself.
        """
        if self._result is None:
            raise RuntimeError("the generation has no result: it is still running, was cancelled, or failed")
        return self._result

    @property
    def started(self) -> bool:
        """Whether the consumer has received a part of the answer."""
        return self._delivered

    @property
    def usage(self) -> Usage:
        """Token counts so far, also of a generation that was cancelled or has failed."""
        return msgspec.structs.replace(self._usage, output_tokens=self._count)

    @property
    def delivered(self) -> Usage:
        """Token counts of the deltas that the consumer is done with, which it is once it has asked for the next.

        An answer that ended of itself counts all its tokens, also the one that ended it; an interrupted one counts
        those of its deltas, and none whose text was still held back.
        """
        return msgspec.structs.replace(self._usage, output_tokens=self._done)

    @property
    @abstractmethod
    def _count(self) -> int:
        """Number of output tokens that have come."""

    @property
    @abstractmethod
    def _released(self) -> int:
        """Number of those whose text is not held back, because it cannot begin a stop string."""

    @property
    @abstractmethod
    def _pending(self) -> bool:
        """Whether something has come that no delta has held yet."""

    @abstractmethod
    def _take(self) -> Delta:
        """Return what is pending."""

    @abstractmethod
    def _drop(self) -> None:
        """Forget what is pending."""

    async def accepted(self) -> None:
        """Wait until the server has taken the request up, which shows in its first output, or until it was cancelled.

        Raises:
            EngineGone, RequestFailed: the server has not taken it up.
        """
        while not (self._heard or self._ended):
            await self._change()
        if self._error is not None:
            raise self._error

    async def __anext__(self) -> Delta:
        self._done = self._given
        while True:
            if self._pending:
                delta = self._take()
                self._delivered = True
                self._given = self._released
                return delta
            if self._error is not None:
                raise self._error
            if self._ended:
                if self._result is not None:
                    self._done = self._count
                raise StopAsyncIteration
            await self._change()

    def cancel(self) -> None:
        """End the request in the server unless it has ended; iteration stops after the pending delta. Idempotent."""
        self._end()

    async def aclose(self) -> None:
        """Do the same as `cancel`, under the name that asynchronous resources use."""
        self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def fail(self, error: Exception) -> None:
        """End with `error`, once the consumer has taken what came before it. A consumer that has not begun to take the
        answer gets none of it, so that `started` stays true to the error.
        """
        if not self._ended:
            self._error = error
            if not self._delivered:
                self._drop()
            self._end()

    async def _change(self) -> None:
        self._changed.clear()
        try:
            await self._changed.wait()
        except asyncio.CancelledError:
            await self.aclose()
            raise

    def _hear(self, *, tokens: bool) -> None:
        """Note that the server has said something, and whether that holds tokens."""
        self._heard = True
        if tokens and self._first_token is None:
            self._first_token = time.monotonic()

    def _finish(self, reason: FinishReason, *, filtered: bool = False) -> None:
        now = time.monotonic()
        self._result = GenerationResult(
            finish_reason=reason,
            usage=self.usage,
            timings=Timings(first_token=(self._first_token or now) - self._begun, total=now - self._begun),
            stop=self._stops.matched,
            filtered=filtered,
        )
        self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._cancel(self.id)
        self._changed.set()
