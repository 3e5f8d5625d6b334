"""One turn from its intended start to its end: asked, perhaps cancelled midway, or cut off and resumed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import msgspec

from load.bodies import request_body
from load.connections.channels import ResponsesHttpChannel, ResponsesSocketChannel, TurnChannel
from load.connections.http import RequestRefused
from load.connections.pool import ChannelPool
from load.plan import PlannedTurn, Protocol
from load.records import MeasuredTurn, TurnEnd
from load.transcript import ChatTranscript, ResponsesTranscript, Transcript

TRANSCRIPTS: dict[Protocol, type[Transcript]] = {
    "chat": ChatTranscript,
    "responses": ResponsesTranscript,
    "responses-http": ResponsesTranscript,
}


class TurnRunner:
    """Runs turns on channels of a pool.

    Args:
        extra: fields of every request's body.
        limit: seconds after its intended start at which a turn is given up.
        redact: takes secrets out of what servers say.
    """

    def __init__(self, pool: ChannelPool, extra: dict[str, Any], limit: float, redact: Callable[[str], str]) -> None:
        self._pool = pool
        self._extra = extra
        self._limit = limit
        self._redact = redact

    async def run(self, turn: PlannedTurn, begun: float) -> MeasuredTurn:
        """Run a turn to its end; `begun` is when the run began, by `time.perf_counter`."""
        running = RunningTurn(turn, self._pool)
        error: str | None = None
        try:
            async with asyncio.timeout(begun + turn.start + self._limit - time.perf_counter()):
                end = await running.run(request_body(turn, self._extra))
        except TimeoutError:
            end, error = TurnEnd.TIMED_OUT, f"no end after {self._limit:g} s"
        except RequestRefused as refused:
            end, error = TurnEnd.REFUSED, str(refused)
        except OSError as lost:
            end, error = TurnEnd.LOST, lost.strerror or str(lost)
        error = running.transcript.error or error
        return running.measured(begun, end, self._redact(error) if error else None)


class RunningTurn:
    """One turn that runs. Times are those of `time.perf_counter`."""

    def __init__(self, turn: PlannedTurn, pool: ChannelPool) -> None:
        self.transcript = TRANSCRIPTS[turn.protocol]()
        self._turn = turn
        self._pool = pool
        self._channel: TurnChannel | None = None
        self._sent: float | None = None
        self._cut: float | None = None
        self._resumed_at = 0
        """Pieces of text received when the turn was resumed; 0: it was not."""
        self._cancelled: float | None = None
        self._cancelling: asyncio.Task[None] | None = None

    async def run(self, body: dict[str, Any]) -> TurnEnd:
        """Ask, and return how it ended.

        Raises:
            RequestRefused: the server did not begin it.
            OSError: no connection could be opened, or it was lost.
        """
        try:
            try:
                await self._on_channel(lambda channel: channel.ask(body, self.transcript, self._seen))
            except ConnectionError:
                if self.transcript.end is None and self._cut is not None:
                    await self._resume()
                elif self._cancelled is None or not isinstance(self.transcript, ChatTranscript):
                    raise
        finally:
            if self._cancelling is not None:
                self._cancelling.cancel()  # what it was for has happened
                await asyncio.gather(self._cancelling, return_exceptions=True)
        return self.transcript.end or TurnEnd.CANCELLED

    def measured(self, begun: float, end: TurnEnd, error: str | None) -> MeasuredTurn:
        """Return what came of it, now that it has ended."""
        now, times, transcript = time.perf_counter(), self.transcript.times, self.transcript
        gaps = [later - earlier for earlier, later in pairwise(times)]
        resumed = None
        if self._cut is not None and 0 < self._resumed_at < len(times):
            resumed = times[self._resumed_at] - self._cut
            del gaps[self._resumed_at - 1]
        return MeasuredTurn(
            plan=msgspec.structs.replace(self._turn, prompt=""),  # long ones of a whole run would fill the memory
            end=end,
            ended=now - begun,
            sent=None if self._sent is None else self._sent - begun,
            first=times[0] - begun if times else None,
            last=times[-1] - begun if times else None,
            gaps=tuple(gaps),
            input_tokens=transcript.input_tokens,
            output_tokens=transcript.output_tokens,
            pieces=len(times),
            characters=len(transcript.text),
            digest=transcript.digest,
            error=error,
            fault=transcript.fault,
            resumed=resumed,
            stopped=None if self._cancelled is None else now - self._cancelled,
        )

    async def _on_channel(self, act: Callable[[TurnChannel], Awaitable[None]]) -> None:
        turn = self._turn
        self._channel = await self._pool.take(turn.protocol, turn.tenant)
        if self._sent is None:
            self._sent = time.perf_counter()
        try:
            await act(self._channel)
        finally:
            self._pool.give_back(turn.protocol, turn.tenant, self._channel)

    async def _resume(self) -> None:
        transcript = self.transcript
        assert isinstance(transcript, ResponsesTranscript)
        self._resumed_at = len(transcript.times)

        async def resume(channel: TurnChannel) -> None:
            assert isinstance(channel, ResponsesSocketChannel | ResponsesHttpChannel)
            await channel.resume(transcript, self._seen)

        await self._on_channel(resume)

    def _seen(self) -> None:
        """After an event: do what the plan says for this place in the text."""
        turn, transcript = self._turn, self.transcript
        assert self._channel is not None
        pieces = len(transcript.times)
        if transcript.end is not None or not pieces:
            return
        if turn.cancel_after is not None and pieces >= turn.cancel_after and self._cancelled is None:
            self._cancelled = time.perf_counter()
            self._cancelling = asyncio.create_task(self._channel.cancel(transcript))
        if turn.drop_after is not None and pieces >= turn.drop_after and self._cut is None:
            self._cut = time.perf_counter()
            self._channel.abort()
