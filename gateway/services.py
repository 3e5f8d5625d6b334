"""The parts that endpoints of one gateway process share. Made by `gateway.app`, reached by `app.state.gateway`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from redis.asyncio import Redis
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from gateway.access.directory.store import Directory
from gateway.access.identity import Principal, Scope
from gateway.access.identity.authenticate import Identity
from gateway.access.identity.secret import SecretComparison
from gateway.access.sign_in import SignIn
from gateway.access.tickets import Tickets
from gateway.batches.store import BatchStore
from gateway.config.configuration import Configuration
from gateway.config.settings import Settings
from gateway.engines.arrival import ArrivalState
from gateway.errors import ApiError
from gateway.pipeline.services import Services
from gateway.registration.job_store import JobStore
from gateway.registration.registrar import Registrar
from gateway.storage.presence import Presence
from gateway.turns import Turns
from gateway.turns.chats import Chats
from gateway.turns.comments import Comments
from gateway.turns.prompts import Prompts
from gateway.turns.shares import Shares


class Sockets(Protocol):
    """The open WebSockets of this process; `gateway.ws.connections.SocketConnections` implements it."""

    draining: bool

    @property
    def open(self) -> int: ...

    async def serve(self, socket: WebSocket) -> None: ...

    def configure(self, settings: Settings) -> None: ...

    def drain(self) -> None: ...

    async def shut(self, grace: float = ...) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Gateway(Services):
    """The parts of a running gateway."""

    configuration: Configuration
    arrivals: ArrivalState
    redis: Redis
    identity: Identity
    tickets: Tickets
    sign_in: SignIn
    turns: Turns
    connections: Sockets
    presence: Presence
    comparison: SecretComparison
    directory: Directory
    jobs: JobStore
    registrar: Registrar
    batches: BatchStore
    chats: Chats
    shares: Shares
    prompts: Prompts
    comments: Comments

    @property
    def settings(self) -> Settings:
        """The settings in force now."""
        return self.configuration.settings

    async def authenticate(self, connection: HTTPConnection, scope: Scope) -> Principal:
        """Find out who sent a request, by its `Authorization` header, or its session.

        Raises:
            Unauthorized: the key is missing or wrong.
            Forbidden: the caller lacks the scope that this endpoint needs.
        """
        principal = await self.identity.authenticate(connection)
        principal.require(scope)
        return principal

    async def caller(self, connection: HTTPConnection) -> Principal | None:
        """Return who sends a request that anybody may send; None: nobody who is known."""
        try:
            return await self.identity.authenticate(connection)
        except ApiError:
            return None

    async def signed_in(self, connection: HTTPConnection) -> Principal | None:
        """Return who has signed in in the browser that sends a request; None: nobody, or it sends a key."""
        principal = await self.caller(connection)
        return principal if principal is not None and principal.session is not None else None


def gateway_of(connection: HTTPConnection) -> Gateway:
    """The gateway that serves this request or WebSocket."""
    return cast(Gateway, connection.app.state.gateway)
