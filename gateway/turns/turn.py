"""A turn, and the viewers that read its log.

A turn belongs to the server, not to the socket that asked for it. That is why stop and resume both work: a viewer that
goes away only starts a timer, an explicit cancel ends the turn at once. A viewer is a cursor into the turn's log, so a
slow one costs no memory: when it reads again, it gets what it missed, as one merged delta or as each one by itself.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from gateway.access.identity import Principal
from gateway.errors import ApiError
from gateway.protocol.events import ResponseView
from gateway.protocol.log import LogEntry, LogEntryKind, TurnLog
from gateway.protocol.requests import Message, ToolCall, TurnRequest
from gateway.protocol.slices import LogSlice
from gateway.protocol.stream import Finished, LimitState, Routed, TokenUsage, TurnEvent
from gateway.telemetry.trace import TurnTrace

LOST = "gateway_lost"
"""Code of the error with which a turn fails whose gateway has died."""
BATCH = 256
"""Most entries of one read of a viewer that gets each delta by itself."""


class TurnState(enum.Enum):
    """States of a turn: ADMITTING -> RUNNING -> FINISHED, or ADMITTING -> REFUSED; any other transition raises."""

    ADMITTING = "admitting"
    RUNNING = "running"
    FINISHED = "finished"
    REFUSED = "refused"


_ALLOWED = {
    (TurnState.ADMITTING, TurnState.RUNNING),
    (TurnState.ADMITTING, TurnState.REFUSED),
    (TurnState.RUNNING, TurnState.FINISHED),
}


class Turn:
    """One question and its answer, running or finished."""

    def __init__(
        self,
        id: str,
        principal: Principal,
        request: TurnRequest,
        history: tuple[Message, ...],
        orphan_timeout: float | None,
        created_at: int | None = None,
    ) -> None:
        """
        Args:
            orphan_timeout: seconds that it runs on without a viewer; None: to its end.
            created_at: Unix time of a turn that began elsewhere.
        """
        self.id = id
        self.principal = principal
        self.request = request
        self.conversation = history + request.messages
        """Messages before this answer, without `instructions`."""
        self.log = TurnLog(with_item=request.generate, queued=request.background)
        self.created_at = int(time.time()) if created_at is None else created_at
        self.view = ResponseView(id, self.created_at, request, self.log)
        self.state = TurnState.ADMITTING
        self.cancelled = False
        self.trace = TurnTrace(request.metadata)
        self.delivered: Callable[[], TokenUsage] = TokenUsage
        """Token counts so far: those that engines computed, and of the answer those that were streamed into `log`."""
        self.sensitive = False
        """Whether a safety rule has found something in the question or the answer."""
        self.cost: int | None = None
        """Cost in micro-dollars, known once no more tokens come and only if they have a price."""
        self.limits: Callable[[], LimitState] = LimitState
        """State of the limits when the turn was admitted."""
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Future that is resolved when the turn has been routed; it holds the `ApiError` if the turn was refused."""
        self.on_answered: Callable[[], Awaitable[ApiError | None]] | None = None
        """Awaited with the whole answer before the turn completes; if it returns an error, the turn fails."""
        self._viewers: set[Viewer] = set()
        self._orphan_timeout = orphan_timeout
        self._orphan_timer: asyncio.TimerHandle | None = None
        self._on_cancel: Callable[[], None] | None = None
        self.on_orphaned = self.cancel
        """Called when nobody has watched the turn for `orphan_timeout` seconds."""

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    @property
    def finished(self) -> bool:
        return self.state is TurnState.FINISHED

    @property
    def answer(self) -> tuple[Message, ...]:
        """The answer as a message, for a turn that continues this one."""
        calls = tuple(
            ToolCall(item.call.id, item.call.name, item.text) for item in self.log.items if item.call is not None
        )
        text = self.log.text
        return (Message("assistant", text, calls),) if text or calls else ()

    def begin(self) -> None:
        """Admit the turn before it is routed: if it is refused from now on, it fails."""
        self._move_to(TurnState.RUNNING)
        self.admitted.set_result(None)

    def append(self, event: TurnEvent) -> None:
        """Record an event and wake the viewers. The first `Routed` admits the turn, `Finished` ends it."""
        if self.state is TurnState.ADMITTING:
            if not isinstance(event, Routed):
                raise RuntimeError(f"turn {self.id}: {type(event).__name__} before it was routed")
            self.begin()
        if isinstance(event, Finished):
            self._finish(int(time.time()))
        self.log.append(event)
        self._wake()

    def extend(self, gained: LogSlice, completed_at: int | None) -> None:
        """Append what a copy of this turn's log has gained.

        Args:
            completed_at: Unix time of its end, if that is in it.

        Raises:
            ValueError: see `TurnLog.extend`.
        """
        self.log.extend(gained)
        if self.state is TurnState.ADMITTING:
            self.begin()
        if self.log.finished is not None:
            self._finish(completed_at)
        self._wake()

    def rewrite(self, request: TurnRequest) -> None:
        """Replace what the turn asks by as many other messages, before it is routed; the old ones are forgotten."""
        self.conversation = self.conversation[: -len(request.messages) or None] + request.messages
        self.request = self.view.request = request

    def refuse(self, error: ApiError) -> None:
        """End a turn that was never routed."""
        self._move_to(TurnState.REFUSED)
        self.admitted.set_exception(error)

    def cancel(self) -> None:
        """Ask the turn to end early; it keeps the text it has. Does nothing if it has ended."""
        if self.cancelled or self.state not in (TurnState.ADMITTING, TurnState.RUNNING):
            return
        self.cancelled = True
        if self._on_cancel is not None:
            self._on_cancel()

    def on_cancel(self, stop: Callable[[], None] | None) -> None:
        """Register `stop` to be called when the turn is cancelled, at once if it already was."""
        self._on_cancel = stop
        if stop is not None and self.cancelled:
            stop()

    def watch(self, after: int = -1, wake: Callable[[], None] | None = None) -> Viewer:
        """Return a viewer that has seen everything up to number `after`. Close it, or use it as a context manager."""
        return Viewer(self, after, wake)

    def resume(self, number: int, wake: Callable[[], None] | None = None, *, extensions: bool) -> Viewer:
        """Return a viewer that has seen everything up to the event that `ResponseView.event` has given this number."""
        viewer = self.watch(number if extensions else self.log.sequence_of(number), wake)
        end = self.log.finished
        if end is not None and end.error is not None and end.error.code == LOST and viewer.cursor >= self.log.last:
            viewer.show_end()
        return viewer

    def _joined(self, viewer: Viewer) -> None:
        self._viewers.add(viewer)
        self._stop_orphan_timer()

    def _left(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        self.looked_after()

    def looked_after(self) -> None:
        """Restart the orphan timer if nobody watches."""
        running = self.state in (TurnState.ADMITTING, TurnState.RUNNING)
        if running and not self._viewers and self._orphan_timeout is not None:
            self._stop_orphan_timer()
            loop = asyncio.get_running_loop()
            self._orphan_timer = loop.call_later(self._orphan_timeout, self.on_orphaned)

    def _stop_orphan_timer(self) -> None:
        if self._orphan_timer is not None:
            self._orphan_timer.cancel()
            self._orphan_timer = None

    def _finish(self, completed_at: int | None) -> None:
        self._move_to(TurnState.FINISHED)
        self._stop_orphan_timer()
        self.view.completed_at = completed_at

    def _wake(self) -> None:
        for viewer in self._viewers:
            viewer.wake()

    def _move_to(self, state: TurnState) -> None:
        if (self.state, state) not in _ALLOWED:
            raise RuntimeError(f"turn {self.id}: illegal transition {self.state.value} -> {state.value}")
        self.state = state


class Viewer:
    """A cursor into a turn's log. The turn runs on for a while after its last viewer was closed."""

    def __init__(self, turn: Turn, after: int, wake: Callable[[], None] | None = None) -> None:
        self.turn = turn
        self.cursor = after
        """Number of the last entry read."""
        self._ahead = 0
        """Number by which entries of this log come too early, because the viewer has seen what was lost with another
        copy of it."""
        self.behind = False
        """Whether the last read found more than one delta waiting, or there is more to read."""
        self._news = asyncio.Event()
        self.wake = wake or self._news.set
        """Callback for when the turn has something new."""
        self.closed = False
        turn._joined(self)
        self.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def exhausted(self) -> bool:
        """Whether the turn has ended and everything was read."""
        return self.turn.finished and self.cursor >= self.turn.log.last

    def read(self, *, extensions: bool = True) -> list[LogEntry]:
        """Return what is new; empty if nothing is.

        Args:
            extensions: return all of it, with events of ours, and with consecutive deltas merged; without them each
                delta is one by itself, because OpenAI's numbers have no gaps, and no more than `BATCH` come at once.
        """
        entries, last = self.turn.log.read(self.cursor, 0 if extensions else BATCH), self.cursor
        if entries:
            self.cursor = entries[-1].sequence
        if self._ahead:
            entries = [entry._replace(sequence=entry.sequence + self._ahead) for entry in entries]
        if extensions:
            self.behind = self.cursor - last > len(entries)
            return entries
        left = self.cursor < self.turn.log.last
        if left:
            self.wake()
        self.behind = left or sum(entry.kind is LogEntryKind.DELTA for entry in entries) > 1
        return [entry for entry in entries if entry.kind is not LogEntryKind.EVENT]

    def show_end(self) -> None:
        """Show the end of a turn that has ended, as the next event after those that were seen."""
        last = self.turn.log.last
        self._ahead, self.cursor = self.cursor + 1 - last, last - 1

    def gained(self) -> LogSlice:
        """Return everything new as data for a copy of the log."""
        gained = self.turn.log.since(self.cursor)
        self.cursor = self.turn.log.last
        return gained

    async def batches(self, coalesce: float = 0.0, *, extensions: bool = True) -> AsyncIterator[list[LogEntry]]:
        """Yield what is new as it comes until the turn has ended, see `read`. A consumer that falls behind gets at most
        one batch every `coalesce` seconds, so that it can catch up; one that keeps up gets every delta at once.
        """
        while not self.exhausted:
            await self._news.wait()
            self._news.clear()
            if entries := self.read(extensions=extensions):
                yield entries
            if self.behind:
                await asyncio.sleep(0 if self.turn.finished else coalesce)

    async def entries(self) -> AsyncIterator[LogEntry]:
        """Yield entries as they come until the turn has ended, consecutive deltas merged."""
        async for batch in self.batches():
            for entry in batch:
                yield entry

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.turn._left(self)
