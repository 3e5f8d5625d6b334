"""An identity over a real Redis, with a clock of its own."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis
from starlette.requests import HTTPConnection

from gateway.access.directory.store import Directory
from gateway.access.directory.view import View, configured
from gateway.access.identity import Principal
from gateway.access.identity.authenticate import Identity
from gateway.access.identity.guesses import Guesses
from gateway.access.identity.issuers import Issuers
from gateway.access.identity.last_used import LastUsed
from gateway.config.identity import IssuerSettings
from gateway.config.settings import ApiKeySettings, Settings, TenantSettings
from gateway.records.api_keys import new_key
from gateway.records.directory import Key, Tenant, User

SECRET = bytes(range(32))
NOW = 2_000_000_000.0
FAILURES = 5
"""Number of wrong keys that an address may send at once."""


def connection(bearer: str | None, address: str | None = "192.0.2.1", header: str | None = None) -> HTTPConnection:
    """A request as an ASGI server describes it."""
    text = header if header is not None else f"Bearer {bearer}" if bearer is not None else None
    headers = [(b"authorization", text.encode("latin-1"))] if text is not None else []
    return HTTPConnection({"type": "http", "headers": headers, "client": (address, 1234) if address else None})


@dataclass
class Installation:
    """The parts that decide who is calling, and ways to change them."""

    redis: Redis
    directory: Directory
    view: View
    identity: Identity
    last_used: LastUsed
    issuers: Issuers
    clock: list[float]
    """Wall clock, in seconds since 1970."""
    steady: list[float]
    """Monotonic clock, in seconds."""

    async def ask(self, bearer: str | None, address: str | None = "192.0.2.1") -> Principal:
        return await self.identity.authenticate(connection(bearer, address))

    async def write(self, *records: Tenant | User | Key) -> None:
        """Change the directory, and let the view know."""
        for record in records:
            await self.directory.write(record, actor="test")
        await self.view.refresh()

    async def key(self, **fields: Any) -> str:
        """Make a new key of the tenant acme."""
        text, digest = new_key(SECRET)
        await self.write(Key(**{"id": f"key_{digest[:8]}", "tenant": "acme", "digest": digest, **fields}))
        return text


async def make_installation(redis: Redis, issuers: Sequence[IssuerSettings] = ()) -> Installation:
    """Put the tenant acme in the directory, and the tenant filed, with a key 'sesame', in the configuration."""
    keys = [ApiKeySettings(id="file", sha256=hashlib.sha256(b"sesame").hexdigest(), scopes=["models"])]
    settings = Settings(tenants=[TenantSettings(name="filed", keys=keys)])
    directory = Directory(redis, configured=configured(settings), secret=SECRET)
    view = View(directory)
    clock, steady = [NOW], [0.0]
    last_used = LastUsed(redis, clock=lambda: clock[0])
    providers = Issuers(issuers, clock=lambda: clock[0], wall=lambda: clock[0])
    identity = Identity(
        view, SECRET, Guesses(FAILURES), last_used, providers, clock=lambda: clock[0], steady=lambda: steady[0]
    )
    installation = Installation(redis, directory, view, identity, last_used, providers, clock, steady)
    await installation.write(Tenant(name="acme"))
    return installation


@pytest.fixture
async def installation(redis_url: str) -> AsyncIterator[Installation]:
    """See `make_installation`."""
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        installation = await make_installation(redis)
        yield installation
        await installation.issuers.aclose()
