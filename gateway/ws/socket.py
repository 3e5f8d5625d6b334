"""`WS /v1/responses`: carries a session's effects out on a real socket and shows turns to it.

One reader and one writer per connection. Nothing is queued per viewer: the writer asks each turn's log for what is new
when the socket has taken what was sent before. Events that the reader causes (errors, mostly) are bounded: it does not
read on while too many of them wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import cast

from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.access.directory.view import View
from gateway.access.identity import Principal
from gateway.access.identity.authenticate import Identity
from gateway.access.tickets import SUBPROTOCOL as TICKET_SUBPROTOCOL
from gateway.access.tickets import Tickets
from gateway.background import Work
from gateway.config.origin import origin_allowed
from gateway.config.settings import Settings
from gateway.errors import ApiError, Forbidden, RateLimited, Unavailable
from gateway.http.exchange import error_response
from gateway.limits.limiter import Limiter
from gateway.limits.reservation import Reservation
from gateway.limits.subjects import socket_subjects
from gateway.protocol.codec import Codec, negotiate
from gateway.protocol.events import CloseCode, Event, error_event, with_stream_id
from gateway.protocol.requests import TurnRequest
from gateway.protocol.session import CancelTurn, Close, Effect, Send, Session, SessionLimits, StartTurn, Watch
from gateway.records.quota import Amounts
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
                if behind:
                    # What comes in the meantime goes together: less work for a client that cannot keep up.
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


class SocketConnections:
    """All WebSockets of this process: who may open one, and what happens to them when the server stops."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        tickets: Tickets,
        turns: Turns,
        metrics: Metrics,
        limiter: Limiter,
        view: View,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._identity = identity
        self._tickets = tickets
        self._turns = turns
        self._limiter = limiter
        self._view = view
        self._open: dict[SocketConnection, asyncio.Task[None]] = {}
        self._by_tenant: Counter[str] = Counter()
        self.draining = False

    def configure(self, settings: Settings) -> None:
        """Take over a new configuration for new connections; open ones keep theirs."""
        self._settings = settings

    @property
    def open(self) -> int:
        return self._by_tenant.total()

    async def serve(self, socket: WebSocket) -> None:
        """Serve one WebSocket, as an ASGI endpoint. A client that may not connect gets an HTTP response instead."""
        try:
            principal = await self._authenticate(socket)
            principal.require("chat")
            self._admit(principal)
        except ApiError as error:
            await socket.send_denial_response(error_response(error))
            return
        try:
            reservation = await self._reserve(principal)
        except BaseException as error:
            self._leave(principal)
            if not isinstance(error, ApiError):
                raise
            await socket.send_denial_response(error_response(error))
            return
        self._metrics.connections.opened()
        code = int(CloseCode.INTERNAL_ERROR)
        try:
            codec, subprotocol = negotiate(socket.scope["subprotocols"], socket.headers)
            connection = SocketConnection(
                socket, codec, principal, self._identity, self._turns, self._settings, self._metrics
            )
            self._open[connection] = cast("asyncio.Task[None]", asyncio.current_task())
            try:
                await socket.accept(subprotocol)
                with self._identity.watching(principal, partial(connection.shut, CloseCode.SIGNED_OUT, "signed out")):
                    await connection.run()
            finally:
                del self._open[connection]
                code = connection.close_code
        finally:
            self._metrics.connections.closed(code)
            self._leave(principal)
            await self._limiter.settle(reservation, Amounts())

    def drain(self) -> None:
        """Refuse new connections and ask the open ones to leave once their turns have ended."""
        self.draining = True
        for connection in list(self._open):
            # Spread out, so that not all clients come back in the same instant.
            connection.drain(reconnect_after=random.uniform(0.2, 2.0))

    async def shut(self, grace: float = CLOSE_TIMEOUT) -> None:
        """Close what is still open and wait until it is closed."""
        for connection in list(self._open):
            connection.shut()
        if self._open:
            await asyncio.wait(self._open.values(), timeout=grace)

    async def _authenticate(self, socket: WebSocket) -> Principal:
        origin = socket.headers.get("origin")
        if not origin_allowed(origin, socket.headers.get("host"), self._settings.server.allowed_origins):
            raise Forbidden(
                "pages of this origin may not connect; list it in server.allowed_origins", code="origin_not_allowed"
            )
        for offered in socket.scope["subprotocols"]:
            if offered.startswith(TICKET_SUBPROTOCOL):
                ticket = offered.removeprefix(TICKET_SUBPROTOCOL)
                return await self._identity.slowed(socket, partial(self._tickets.redeem, ticket, origin))
        return await self._identity.authenticate(socket)

    def _admit(self, principal: Principal) -> None:
        server = self._settings.server
        if self.draining:
            raise Unavailable("the server is restarting; connect again", code="draining", headers={"retry-after": "1"})
        if self.open >= server.max_connections:
            raise Unavailable(
                "the server has as many connections as it may hold; try again later", headers={"retry-after": "5"}
            )
        if self._by_tenant[principal.tenant] >= server.max_connections_per_tenant:
            raise RateLimited(
                f"{server.max_connections_per_tenant} connections of this tenant are open; close one",
                retry_after=5,
                code="too_many_connections",
            )
        self._by_tenant[principal.tenant] += 1

    def _leave(self, principal: Principal) -> None:
        self._by_tenant[principal.tenant] -= 1
        self._by_tenant += Counter()  # drops tenants without connections

    async def _reserve(self, principal: Principal) -> Reservation:
        """Count the socket beside those of other gateways, if the tenant or key has a limit of them."""
        tenant = self._view.tenant(principal.tenant)
        subjects = socket_subjects(self._settings.limits, tenant, principal)
        # It names this gateway, as a turn's does: what a gateway holds that dies is found by that.
        id = self._turns.ids.new(principal.tenant).replace("resp_", "socket_")
        return await self._limiter.reserve(principal.tenant, id, Amounts(sockets=1), subjects)
