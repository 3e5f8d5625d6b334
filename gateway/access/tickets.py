"""Tickets, with which a browser opens a WebSocket without its API key in an address, a cookie or a log.

A page posts its key once to `/v1/tickets` and offers the ticket as a WebSocket subprotocol. A ticket is 256 random
bits, lives 30 seconds, works once, and only from the origin it was given to. Redis holds its digest, not itself.
"""

from __future__ import annotations

import hashlib
import secrets

import msgspec
from redis.asyncio import Redis

from gateway.access.identity import Principal
from gateway.errors import Unauthorized
from gateway.storage.connect import unavailable_without_redis

LIFETIME = 30
"""Seconds for which a ticket is valid."""

TICKET_KEY = "rh1:ticket:{digest}"

SUBPROTOCOL = "roundhouse.ticket."
"""Prefix of the subprotocol that carries a ticket."""


class _Stub(msgspec.Struct, frozen=True):
    principal: Principal
    origin: str | None


_decode = msgspec.msgpack.Decoder(_Stub).decode


class Tickets:
    """Issues and redeems tickets."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def issue(self, principal: Principal, origin: str | None) -> str:
        """Issue a ticket for this principal and origin.

        Raises:
            Unavailable: Redis does not answer.
        """
        ticket = secrets.token_urlsafe(32)
        stub = msgspec.msgpack.encode(_Stub(principal, origin))
        with unavailable_without_redis("tickets cannot be issued"):
            await self._redis.set(_key(ticket), stub, ex=LIFETIME)
        return ticket

    async def redeem(self, ticket: str, origin: str | None) -> Principal:
        """Return the principal behind a ticket, which can be used only once.

        Raises:
            Unauthorized: unknown, expired, used before, or offered from another origin.
            Unavailable: Redis does not answer.
        """
        with unavailable_without_redis("tickets cannot be checked"):
            value = await self._redis.getdel(_key(ticket))
        stub = _decode(value) if isinstance(value, bytes) else None
        if stub is None or stub.origin != origin:
            raise Unauthorized(
                "the ticket is unknown, expired, used, or another origin's; get a new one from POST /v1/tickets"
            )
        return stub.principal


def _key(ticket: str) -> str:
    return TICKET_KEY.format(digest=hashlib.sha256(ticket.encode()).hexdigest())
