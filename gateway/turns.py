"""Turns: the server-owned life of one answer.

A turn belongs to the server, not to the socket that asked for it. That is why stop and resume both work: a viewer that
goes away only starts a timer, an explicit cancel ends the turn at once. A viewer is a cursor into the turn's log, so a
slow one costs no memory: when it reads again, it gets what it missed as one merged delta.

    with await turns.start(request, principal) as viewer:
        async for entry in viewer:
            ...
"""

from __future__ import annotations

import asyncio
import enum
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol, Self

from gateway.errors import ApiError, Conflict, NotFound, PreviousResponseNotFound, Unavailable
from gateway.identity import Principal
from gateway.protocol.events import ResponseView
from gateway.protocol.items import ItemState
from gateway.protocol.log import Entry, TurnLog
from gateway.protocol.messages import check_answers
from gateway.protocol.requests import Message, ToolCall, TurnRequest
from gateway.protocol.stream import Finished, Routed, TurnEvent, Usage
from gateway.settings import Turns as TurnSettings
from gateway.telemetry.trace import TurnTrace

logger = logging.getLogger("roundhouse.turns")

MAX_RETAINED_CHARACTERS = 256 * 1024 * 1024
"""Text of all finished turns together, questions included; the oldest go first."""


class TurnState(enum.Enum):
    """ADMITTING -> RUNNING -> FINISHED, or ADMITTING -> REFUSED; anything else raises."""

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
    """One answer in the making, or made."""

    def __init__(
        self, principal: Principal, request: TurnRequest, history: tuple[Message, ...], orphan_timeout: float
    ) -> None:
        self.id = "resp_" + secrets.token_hex(24)
        self.principal = principal
        self.request = request
        self.trace = TurnTrace(request.metadata)
        self.conversation = history + request.messages
        """Everything said before this answer, without `instructions`."""
        self.log = TurnLog(with_item=request.generate)
        self.view = ResponseView(self.id, int(time.time()), request, self.log)
        self.state = TurnState.ADMITTING
        self.cancelled = False
        self.delivered: Callable[[], Usage] = Usage
        """Tokens so far: those that engines computed, and of the answer those that were streamed into `log`."""
        self.cost: int | None = None
        """Micro-dollars that it costs, once no more tokens come and if they have a price."""
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the turn has been routed; holds the `ApiError` if it was refused."""
        self._viewers: set[Viewer] = set()
        self._orphan_timeout = orphan_timeout
        self._orphan_timer: asyncio.TimerHandle | None = None
        self._on_cancel: Callable[[], None] | None = None

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    @property
    def finished(self) -> bool:
        return self.state is TurnState.FINISHED

    @property
    def answer(self) -> tuple[Message, ...]:
        """What was answered, for a turn that continues this one. A call that was cut off cannot be answered to."""
        calls = tuple(
            ToolCall(item.call.id, item.call.name, item.text)
            for item in self.log.items
            if item.call is not None and item.state is ItemState.COMPLETED
        )
        text = self.log.text
        return (Message("assistant", text, calls),) if text or calls else ()

    def append(self, event: TurnEvent) -> None:
        """Record an event and wake the viewers. The first `Routed` admits the turn, `Finished` ends it."""
        if self.state is TurnState.ADMITTING:
            if not isinstance(event, Routed):
                raise RuntimeError(f"turn {self.id}: {type(event).__name__} before it was routed")
            self._move_to(TurnState.RUNNING)
            self.admitted.set_result(None)
        if isinstance(event, Finished):
            self._move_to(TurnState.FINISHED)
            self._stop_orphan_timer()
            self.view.completed_at = int(time.time())
        self.log.append(event)
        for viewer in self._viewers:
            viewer.wake()

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
        """Have `stop` called when the turn is cancelled, at once if it already was. For the pipeline."""
        self._on_cancel = stop
        if stop is not None and self.cancelled:
            stop()

    def watch(self, after: int = -1, wake: Callable[[], None] | None = None) -> Viewer:
        """A viewer that has seen everything up to number `after`. Close it, or use it as a context manager."""
        return Viewer(self, after, wake)

    def _joined(self, viewer: Viewer) -> None:
        self._viewers.add(viewer)
        self._stop_orphan_timer()

    def _left(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        if not self._viewers and self.state in (TurnState.ADMITTING, TurnState.RUNNING):
            loop = asyncio.get_running_loop()
            self._orphan_timer = loop.call_later(self._orphan_timeout, self.cancel)

    def _stop_orphan_timer(self) -> None:
        if self._orphan_timer is not None:
            self._orphan_timer.cancel()
            self._orphan_timer = None

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
        self.behind = False
        """Whether the last read found more than one delta waiting."""
        self._news = asyncio.Event()
        self.wake = wake or self._news.set
        """Called when the turn has something new."""
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

    def read(self) -> list[Entry]:
        """Everything new, consecutive deltas merged; empty if nothing is."""
        waiting = self.turn.log.waiting(self.cursor)
        entries = self.turn.log.read(self.cursor)
        self.behind = waiting > len(entries)
        if entries:
            self.cursor = entries[-1].sequence
        return entries

    async def entries(self, coalesce: float = 0.0) -> AsyncIterator[Entry]:
        """Entries as they come until the turn has ended. A consumer that falls behind gets at most one delta every
        `coalesce` seconds, so that it can catch up; one that keeps up gets every delta at once.
        """
        while not self.exhausted:
            await self._news.wait()
            self._news.clear()
            for entry in self.read():
                yield entry
            if self.behind and not self.turn.finished:
                await asyncio.sleep(coalesce)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.turn._left(self)


class Road(Protocol):
    """What carries a turn from request to answer; `gateway.pipeline.Pipeline` in production."""

    async def run(self, turn: Turn) -> None:
        """Run the turn, giving its events to `turn.append` in the order of `gateway.protocol.stream`.

        Raises:
            ApiError: the turn was refused; only before it was routed.
        """
        ...


class Turns:
    """All turns of this process: running ones, and finished ones for as long as they can be resumed or continued."""

    def __init__(self, road: Road, settings: TurnSettings) -> None:
        self._road = road
        self._settings = settings
        self._turns: dict[str, Turn] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._retained: OrderedDict[str, asyncio.TimerHandle] = OrderedDict()
        self._retained_characters = 0
        self.draining = False
        """Once true, new turns are refused."""

    @property
    def running(self) -> int:
        """Turns that have not ended, including those being admitted."""
        return len(self._tasks)

    @property
    def retained(self) -> int:
        """Finished turns that are still kept."""
        return len(self._retained)

    @property
    def viewers(self) -> int:
        return sum(turn.viewers for turn in self._turns.values())

    async def start(
        self,
        request: TurnRequest,
        principal: Principal,
        *,
        wake: Callable[[], None] | None = None,
        orphan_timeout: float | None = None,
        own: Mapping[str, Turn] | None = None,
    ) -> Viewer:
        """Start a turn and watch it from its first entry. Returns once it has been admitted and routed.

        Args:
            wake: see `Viewer.wake`.
            orphan_timeout: seconds the turn runs on without a viewer, instead of the configured ones.
            own: turns of the caller's connection, which it may continue even if they are not stored.

        Raises:
            ApiError: the turn was refused: unknown model or previous response, too long, over a limit, no engine, ...
        """
        if self.draining:
            raise Unavailable("the server is restarting; connect again", code="draining", headers={"retry-after": "1"})
        history = self._history(request, principal, own or {})
        timeout = self._settings.orphan_timeout if orphan_timeout is None else orphan_timeout
        turn = Turn(principal, request, history, timeout)
        self._turns[turn.id] = turn
        task = asyncio.create_task(self._run(turn), name=f"turn {turn.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        viewer = turn.watch(wake=wake)
        try:
            await asyncio.shield(turn.admitted)
        except BaseException:
            viewer.close()
            raise
        return viewer

    def get(self, response_id: str, principal: Principal) -> Turn:
        """The running or retained turn of this tenant.

        Raises:
            NotFound: there is none, it is no longer kept, or it is another tenant's.
        """
        turn = self._turns.get(response_id)
        if turn is None or turn.principal.tenant != principal.tenant or turn.state is TurnState.ADMITTING:
            raise NotFound(
                f"response_id: no response {response_id[:80]!r}; responses are kept for "
                f"{self._settings.retention:g} seconds after they end",
                param="response_id",
                code="response_not_found",
            )
        return turn

    async def drain(self, grace: float) -> None:
        """Refuse new turns, let the running ones end, cancel those that take longer than `grace` seconds."""
        self.draining = True
        await self._wait_idle(grace)
        for turn in list(self._turns.values()):
            turn.cancel()

    async def aclose(self) -> None:
        """Cancel what still runs and forget everything."""
        await self.drain(0)
        await self._wait_idle(1)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._retained:
            self._forget(next(iter(self._retained)))

    async def _wait_idle(self, seconds: float) -> None:
        if self._tasks and seconds:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _history(self, request: TurnRequest, principal: Principal, own: Mapping[str, Turn]) -> tuple[Message, ...]:
        previous_id = request.previous_response_id
        if previous_id is None:
            return ()
        previous = own.get(previous_id) or self._turns.get(previous_id)
        known = previous is not None and previous.principal.tenant == principal.tenant
        if not known or previous is None or previous.state in (TurnState.ADMITTING, TurnState.REFUSED):
            raise PreviousResponseNotFound(
                f"Previous response with id '{previous_id[:80]}' not found. Send the whole conversation without "
                "previous_response_id.",
                param="previous_response_id",
            )
        if previous.log.finished is None:
            raise Conflict(
                "previous_response_id: this response is still in progress; wait for its last event or cancel it",
                param="previous_response_id",
                code="response_in_progress",
            )
        if previous.log.finished.reason == "error":
            raise PreviousResponseNotFound(
                f"Previous response with id '{previous_id}' failed and cannot be continued; send its input again.",
                param="previous_response_id",
            )
        history = previous.conversation + previous.answer
        check_answers(request.messages, history)
        return history

    async def _run(self, turn: Turn) -> None:
        try:
            await self._road.run(turn)
            if not turn.finished:
                raise RuntimeError("the road ended before the turn did")
        except ApiError as error:
            self._end(turn, error)
        except Exception:
            logger.exception("turn failed", extra={"response_id": turn.id})
            self._end(turn, ApiError("the server failed while it worked on this request"))
        except asyncio.CancelledError:
            self._end(turn, Unavailable("the server is shutting down", code="draining"))
            raise
        finally:
            self._retain(turn)

    def _end(self, turn: Turn, error: ApiError) -> None:
        if turn.state is TurnState.ADMITTING:
            turn.refuse(error)
        elif turn.state is TurnState.RUNNING:
            turn.append(Finished("error", turn.delivered(), error, turn.cost))

    def _retain(self, turn: Turn) -> None:
        if not turn.finished:
            del self._turns[turn.id]
            # Nobody may be waiting any more: a refusal nobody asks for is no unhandled error.
            turn.admitted.exception()
            return
        # An answer that is not to be stored is kept just long enough for a cut connection to fetch its end.
        seconds = self._settings.retention if turn.request.store else self._settings.orphan_timeout
        loop = asyncio.get_running_loop()
        self._retained[turn.id] = loop.call_later(seconds, self._forget, turn.id)
        self._retained_characters += _characters(turn)
        while len(self._retained) > self._settings.max_retained or self._retained_characters > MAX_RETAINED_CHARACTERS:
            self._forget(next(iter(self._retained)))

    def _forget(self, response_id: str) -> None:
        self._retained.pop(response_id).cancel()
        self._retained_characters -= _characters(self._turns.pop(response_id))


def _characters(turn: Turn) -> int:
    return turn.log.characters + turn.request.extent + sum(message.size for message in turn.conversation)
