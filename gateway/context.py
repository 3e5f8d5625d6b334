"""What the endpoints of one gateway process share. Made by `gateway.app`, reached through `app.state.gateway`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from redis.asyncio import Redis
from starlette.requests import HTTPConnection

from cache.embedding.client import EmbedderClient
from gateway.adapters import Adapters
from gateway.admin.parts import AdminParts
from gateway.billing.ledger import Ledger
from gateway.configuration import Configuration
from gateway.directory.store import Directory
from gateway.directory.view import View
from gateway.engines import Engines
from gateway.identity import Principal, Scope
from gateway.identity.authenticate import Identity
from gateway.limits.limiter import Limiter
from gateway.presence import Presence
from gateway.routing.decisions import DecisionLog
from gateway.semantic.answers import SimilarAnswers
from gateway.settings import Settings
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.tracing import Tracing
from gateway.tickets import Tickets
from gateway.turns import Turns
from gateway.websocket import Connections


@dataclass(frozen=True)
class Gateway:
    """The parts of a running gateway."""

    configuration: Configuration
    redis: Redis
    identity: Identity
    tickets: Tickets
    limiter: Limiter
    engines: Engines
    adapters: Adapters
    turns: Turns
    connections: Connections
    metrics: Metrics
    presence: Presence
    directory: Directory
    view: View
    tracing: Tracing | None
    admin: AdminParts
    ledger: Ledger
    decisions: DecisionLog
    embedder: EmbedderClient | None
    """None: there is none, and never will be."""
    similar: SimilarAnswers | None
    """The semantic cache; None: there is none."""

    @property
    def settings(self) -> Settings:
        """Those in force now."""
        return self.configuration.settings

    async def authenticate(self, connection: HTTPConnection, scope: Scope) -> Principal:
        """Who sent a request, by its `Authorization` header.

        Raises:
            Unauthorized: the key is missing or wrong.
            Forbidden: the key lacks the scope that this endpoint needs.
        """
        principal = await self.identity.authenticate(connection)
        principal.require(scope)
        return principal


def gateway_of(connection: HTTPConnection) -> Gateway:
    """The gateway that serves this request or WebSocket."""
    return cast(Gateway, connection.app.state.gateway)
