"""Callers whom a browser session names: what the configuration and the directory say of them now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from starlette.requests import HTTPConnection

from gateway.access.identity import Principal
from gateway.access.identity.browser_sessions import BrowserSessions
from gateway.access.identity.principal import ADMIN, LINK, SCOPES
from gateway.config.identity import IdentitySettings, IssuerSettings
from gateway.errors import Forbidden, Unauthorized
from gateway.records.directory import Tenant, User
from gateway.storage.seal import Seal
from tests.gateway.access.identity.conftest import SECRET, Installation, make_installation

pytestmark = pytest.mark.anyio

HOST = "chat.example.com"
ANN = Principal("acme", "token:idp", "corp:ann", SCOPES, operator=True)
OPERATOR = Principal("acme", LINK, scopes=SCOPES, operator=True)


class Site:
    """An installation, and a browser that has signed in there."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        sessions = BrowserSessions(
            installation.redis, Seal(SECRET), IdentitySettings(), clock=lambda: installation.clock[0]
        )
        self.sessions = installation.identity.sessions = sessions
        self.id = ""

    async def sign_in(self, principal: Principal) -> Principal:
        self.id, _ = await self.sessions.begin(principal)
        return await self.ask()

    async def ask(self) -> Principal:
        """Ask by cookie."""
        headers = [(b"host", HOST.encode()), (b"cookie", f"__Host-roundhouse-session={self.id}".encode())]
        request = HTTPConnection({"type": "http", "method": "GET", "headers": headers, "client": ("192.0.2.1", 1)})
        return await self.installation.identity.authenticate(request)


@pytest.fixture
async def make_site(redis_url: str) -> AsyncIterator[Callable[..., Any]]:
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        installations = []

        async def make(**fields: Any) -> Site:
            issuer = {"name": "idp", "issuer": "https://idp", "audience": ["x"], "tenant": "acme", **fields}
            installations.append(await make_installation(redis, [IssuerSettings(**issuer)] if fields else []))
            return Site(installations[-1])

        yield make
        for installation in installations:
            await installation.issuers.aclose()


@pytest.fixture
async def site(make_site: Callable[..., Any]) -> Site:
    made: Site = await make_site(subject_prefix="corp:", operators=["ann"])
    return made


async def test_a_session_is_the_principal_that_began_it(site: Site) -> None:
    found = await site.sign_in(ANN)
    assert found == msgspec.structs.replace(ANN, session=found.session, expires_at=found.expires_at)
    assert await site.installation.identity.renew(found) == found


async def test_who_is_no_operator_any_more_is_none(make_site: Callable[..., Any], site: Site) -> None:
    """Also in a session that has begun; nobody becomes one in it."""
    assert (await site.sign_in(ANN)).operator
    assert not (await site.sign_in(msgspec.structs.replace(ANN, operator=False))).operator
    site = await make_site(subject_prefix="corp:", operators=["corp:ann"])
    assert not (await site.sign_in(ANN)).operator


async def test_sessions_of_a_provider_that_is_not_trusted_any_more_have_ended(make_site: Callable[..., Any]) -> None:
    site = await make_site()
    with pytest.raises(Unauthorized, match="not trusted") as caught:
        await site.sign_in(ANN)
    assert caught.value.code == "session_ended"


async def test_users_and_tenants_are_looked_up_each_time(site: Site) -> None:
    found = await site.sign_in(ANN)
    user = User(id="u", tenant="acme", subject="corp:ann", scopes=["chat"])
    await site.installation.write(user)
    assert (await site.ask()).scopes == {"chat"}
    await site.installation.write(msgspec.structs.replace(user, disabled=True))
    for again in (site.ask(), site.installation.identity.renew(found)):
        with pytest.raises(Unauthorized, match="disabled"):
            await again
    await site.installation.write(Tenant(name="acme", disabled=True))
    with pytest.raises(Forbidden):
        await site.ask()


async def test_an_operator_of_this_machine_administers_without_a_tenant(site: Site) -> None:
    """And chats with one."""
    found = await site.sign_in(OPERATOR)
    assert (found.tenant, found.scopes) == ("acme", SCOPES)
    await site.installation.write(Tenant(name="acme", disabled=True))
    found = await site.ask()
    assert (found.tenant, found.scopes, found.operator) == ("", ADMIN, True)
    found = await site.sign_in(msgspec.structs.replace(OPERATOR, tenant=""))
    assert (found.tenant, found.scopes, found.operator) == ("", ADMIN, True)


async def test_a_session_that_was_signed_out_renews_nothing(site: Site) -> None:
    found = await site.sign_in(ANN)
    assert found.session is not None
    await site.sessions.end(found.session)
    with pytest.raises(Unauthorized):
        await site.installation.identity.renew(found)


async def test_without_sessions_a_cookie_is_nothing(site: Site) -> None:
    await site.sign_in(ANN)
    site.installation.identity.sessions = None
    with pytest.raises(Unauthorized) as caught:
        await site.ask()
    assert caught.value.code == "missing_api_key"
