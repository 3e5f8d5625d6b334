"""`WS /v1/responses`: carries a session's effects out on a real socket and shows turns to it.

One reader and one writer per connection. Nothing is queued per viewer: the writer asks each turn's log for what is new
when the socket has taken what was sent before. Events that the reader causes (errors, mostly) are bounded: it does not
read on while too many of them wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial

from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.access.identity import Principal
from gateway.access.identity.authenticate import Identity
from gateway.access.tickets import SUBPROTOCOL as TICKET_SUBPROTOCOL
from gateway.background import Work
from gateway.config.settings import Settings
from gateway.errors import ApiError
from gateway.protocol.codec import Codec
from gateway.protocol.events import CloseCode, Event, error_event, with_stream_id
from gateway.protocol.requests import TurnRequest
from gateway.protocol.session import CancelTurn, Close, Effect, Send, Session, SessionLimits, StartTurn, Watch
from gateway.telemetry.metrics.process import Metrics
from gateway.turns import Turn, Turns, Viewer
from gateway.ws import waiting
from gateway.ws.uvicorn_protocol import SlowConsumer

log = logging.getLogger("roundhouse.ws")

MAX_UNSENT = 64
"""Events, besides those of turns, that may wait to be sent; while so many do, the client is not read."""
MAX_CANCELS = 16
"""Responses that may be looked up at once to be cancelled; with more, the client is not read."""
MAX_OWN = 32
"""Most turns that a connection may continue although they are not stored; the oldest are forgotten first."""
CLOSE_TIMEOUT = 2.0
"""Seconds that sending a close frame may take."""


class SocketConnection:
    """One accepted WebSocket."""

    def __init__(
        self,
        socket: WebSocket,
        codec: Codec,
        principal: Principal,
        identity: Identity,
        turns: Turns,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        server = settings.server
        limits = SessionLimits(
            max_message_bytes=server.max_message_bytes,
            max_turns=settings.turns.max_concurrent_per_connection,
            first_message_timeout=server.first_message_timeout,
            idle_timeout=server.idle_timeout,
            lifetime=server.connection_lifetime,
            ignore_unknown=identity.ignores_unknown(principal),
        )
        self._loop = asyncio.get_running_loop()
        self._socket = socket
        self._codec = codec
        self._principal = principal
        self._identity = identity
        self._turns = turns
        self._metrics = metrics
        self._send_timeout = server.send_timeout
        self._coalesce = settings.turns.coalesce_window
        self._page = ticket_of(socket) is not None
        self._session = Session(codec, limits, self._loop.time())
        self._viewers: dict[int, Viewer] = {}
        """Viewers of the turns that are shown, by subscription."""
        self._own: dict[str, Turn] = {}
        """Turns, by id, that this connection may continue although they are not stored."""
        self._starts: set[asyncio.Task[None]] = set()
        """Tasks that look up what the client asked for: turns to start, to show or to cancel."""
        self._max_starts = limits.max_turns + MAX_CANCELS
        self._unsent: list[Event] = []
        self._room = waiting.Event()
        """Set when there is room in `_unsent`."""
        self._wake = waiting.Event()
        """Set when the writer has something to do."""
        self._closing: Close | None = None
        self.close_code = int(CloseCode.INTERNAL_ERROR)
        """Code with which the connection was closed, once `run` has returned."""
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serve until either side closes. The connection's turns run on without this viewer for a while."""
        self._set_timer()
        reader, writer = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._session.disconnected()
            if self._timer is not None:
                self._timer.cancel()
            for task in (reader, writer, *self._starts):
                task.cancel()
            ended = await asyncio.gather(reader, writer, *self._starts, return_exceptions=True)
            for viewer in self._viewers.values():
                viewer.close()
        for outcome in ended:
            if isinstance(outcome, Exception) and not isinstance(outcome, WebSocketDisconnect):
                raise outcome

    def drain(self, reconnect_after: float) -> None:
        """Tell the client to connect anew; the connection closes when its turns have ended."""
        self._carry_out(self._session.drain(reconnect_after))

    def shut(self, code: CloseCode = CloseCode.RESTART, reason: str = "restart") -> None:
        """Close the connection now."""
        self._carry_out(self._session.shut(code, reason))

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                self.close_code = message["code"]
                return
            text = message.get("text")
            self._carry_out(self._session.receive(message["bytes"] if text is None else text, self._loop.time()))
            while len(self._unsent) >= MAX_UNSENT:
                self._room.clear()
                await self._room.wait()
            while len(self._starts) >= self._max_starts:
                await asyncio.wait(self._starts, return_when=asyncio.FIRST_COMPLETED)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(event):
                    self._post(event)
                case StartTurn(subscription, request, key):
                    self._spawn(partial(self._start, subscription, request, key), subscription)
                case Watch(subscription, response_id, after):
                    self._spawn(partial(self._watch, subscription, response_id, after), subscription)
                case CancelTurn(response_id, lane):
                    self._spawn(partial(self._cancel, response_id), lane=lane)
                case Close():
                    self._closing = effect
                    self._wake.set()
        self._set_timer()

    def _spawn(self, work: Work, subscription: int | None = None, lane: str | None = None) -> None:
        task = asyncio.create_task(self._answer(work, subscription, lane))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _answer(self, work: Work, subscription: int | None, lane: str | None) -> None:
        """Do what the client asked for with this subscription or on this lane, or say why not."""
        try:
            # Its key or token may have expired or been revoked since it connected.
            self._principal = await self._identity.renew(self._principal)
            self._principal.require("chat")
            await work()
            return
        except ApiError as refusal:
            error = refusal
        except Exception:
            log.exception("a client's message could not be carried out")
            self._metrics.background.failed("websocket")
            error = ApiError("the server failed while it worked on this request")
        if subscription is None:
            self._post(error_event(error, lane))
        else:
            self._carry_out(self._session.turn_refused(subscription, error, self._loop.time()))

    async def _start(self, subscription: int, request: TurnRequest, key: str | None) -> None:
        viewer = await self._turns.start(
            request, self._principal, wake=self._wake.set, own=self._own, idempotency_key=key
        )
        self._show(subscription, viewer)
        if not request.store:
            self._own[viewer.turn.id] = viewer.turn
            if len(self._own) > MAX_OWN:
                del self._own[next(iter(self._own))]

    async def _cancel(self, response_id: str) -> None:
        (await self._turns.find(response_id, self._principal)).cancel()

    async def _watch(self, subscription: int, response_id: str, after: int) -> None:
        turn = await self._turns.find(response_id, self._principal)
        self._metrics.connections.resumed()
        self._show(subscription, turn.resume(after, self._wake.set, extensions=self._codec.extensions))

    def _show(self, subscription: int, viewer: Viewer) -> None:
        self._session.turn_started(subscription, viewer.turn.id)
        self._viewers[subscription] = viewer
        self._wake.set()

    def _post(self, event: Event) -> None:
        self._unsent.append(event)
        self._wake.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                behind = False
                for subscription in list(self._viewers):
                    await self._send_waiting()
                    behind |= await self._send_news(subscription)
                await self._send_waiting()
                if self._closing is not None:
                    await self._close(self._closing.code, self._closing.reason)
                    return
                if behind or self._page:
                    # What comes in the meantime goes together: less work for a client that cannot keep up, and for a
                    # browser, which each message costs a task.
                    await asyncio.sleep(self._coalesce)
        except SlowConsumer:
            self._metrics.connections.slow_consumer()
            await self._close(CloseCode.SLOW_CONSUMER, f"nothing was read for {self._send_timeout:g} seconds")

    async def _send_news(self, subscription: int) -> bool:
        """Send the new events of one turn; return whether its viewer was behind."""
        viewer, lane = self._viewers[subscription], self._session.lane(subscription)
        extensions = self._codec.extensions
        for entry in viewer.read(extensions=extensions):
            await self._send(with_stream_id(viewer.turn.view.event(entry, extensions=extensions), lane))
        if viewer.exhausted:
            self._viewers.pop(subscription).close()
            self._carry_out(self._session.turn_ended(subscription, self._loop.time()))
        return viewer.behind

    async def _send_waiting(self) -> None:
        while self._unsent:
            await self._send(self._unsent.pop(0))
            self._room.set()

    async def _send(self, event: Event) -> None:
        message = self._codec.encode(event)
        if isinstance(message, str):
            await self._socket.send_text(message)
        else:
            await self._socket.send_bytes(message)

    async def _close(self, code: CloseCode, reason: str) -> None:
        self.close_code = int(code)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._socket.close(code, reason)

    def _set_timer(self) -> None:
        """Have `_tick` called when the session wants it. A timer that is too early does no harm and is left alone."""
        deadline = self._session.deadline
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
            self._timer = None
        if deadline != float("inf"):
            self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self._session.tick(self._loop.time()))


def ticket_of(socket: WebSocket) -> str | None:
    """The ticket that a page offers in the place of a key."""
    offered = (each for each in socket.scope["subprotocols"] if each.startswith(TICKET_SUBPROTOCOL))
    return next((each.removeprefix(TICKET_SUBPROTOCOL) for each in offered), None)
