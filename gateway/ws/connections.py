"""All WebSockets of this process: who may open one, and what happens to them when the server stops."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial
from typing import cast

from starlette.websockets import WebSocket

from gateway.access.directory.view import View
from gateway.access.identity import Principal
from gateway.access.identity.authenticate import Identity
from gateway.access.tickets import Tickets
from gateway.config.origin import origin_allowed
from gateway.config.settings import Settings
from gateway.errors import ApiError, Forbidden, RateLimited, Unavailable
from gateway.http.exchange import error_response
from gateway.limits.limiter import Limiter
from gateway.limits.reservation import Reservation
from gateway.limits.subjects import socket_subjects
from gateway.protocol.codec import negotiate
from gateway.protocol.events import CloseCode
from gateway.records.quota import Amounts
from gateway.telemetry.metrics.process import Metrics
from gateway.turns import Turns
from gateway.ws.socket import CLOSE_TIMEOUT, SocketConnection, ticket_of


class SocketConnections:
    """The WebSockets that are open."""

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
        ticket = ticket_of(socket)
        if ticket is not None:
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
