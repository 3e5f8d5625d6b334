"""Identity providers over real HTTP, and callers with their tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.access.directory.seen import RecordCache
from gateway.access.identity import Principal
from gateway.access.identity.authenticate import MAX_CREDENTIAL
from gateway.config.identity import IssuerSettings
from gateway.errors import Forbidden, RateLimited, Unauthorized, Unavailable
from gateway.records.directory import Tenant, User
from tests.gateway.access.identity.conftest import FAILURES, Installation, make_installation
from tests.gateway.access.identity.provider import AUDIENCE, ProviderServer, private_key, public_jwk

pytestmark = pytest.mark.anyio

TWO = public_jwk(private_key("RSA", "two"), kid="two")
ONE = public_jwk(private_key("RSA"), kid="one")


class Site:
    """A installation that trusts a provider."""

    def __init__(self, installation: Installation, provider: ProviderServer) -> None:
        self.installation = installation
        self.provider = provider

    async def ask(self, token: str) -> Principal:
        return await self.installation.ask(token)

    def later(self, seconds: float) -> None:
        self.installation.clock[0] += seconds


@pytest.fixture
async def make_site(redis_url: str) -> AsyncIterator[Callable[..., Any]]:
    with ProviderServer() as provider:
        async with Redis.from_url(redis_url) as redis:
            await redis.flushall()
            installations = []

            async def make(**fields: Any) -> Site:
                issuer = {"name": "idp", "issuer": provider.url, "audience": [AUDIENCE], "tenant": "acme", **fields}
                installation = await make_installation(redis, [IssuerSettings(**issuer)])
                installation.clock[0] = time.time()
                installations.append(installation)
                return Site(installation, provider)

            yield make
            provider.hold.set()
            for installation in installations:
                await installation.issuers.aclose()


@pytest.fixture
async def site(make_site: Callable[..., Any]) -> Site:
    made: Site = await make_site()
    return made


async def test_a_token_is_a_principal(site: Site) -> None:
    """Found by discovery, verified once, remembered."""
    token = site.provider.token(scope="chat admin:read")
    first, second = await site.ask(token), await site.ask(token)
    assert first == second
    assert (first.tenant, first.key, first.user) == ("acme", "token:idp", "ann")
    assert first.scopes == {"chat", "admin:read"} and not first.operator
    assert site.provider.asked == {"/.well-known/openid-configuration": 1, "/jwks": 1}


async def test_an_address_of_keys_needs_no_discovery(make_site: Callable[..., Any]) -> None:
    site = await make_site()
    direct = await make_site(jwks_url=f"{site.provider.url}/jwks")
    await direct.ask(site.provider.token())
    assert site.provider.asked == {"/jwks": 1}


async def test_another_issuers_token_is_refused_without_asking_anyone(site: Site) -> None:
    with pytest.raises(Unauthorized, match="issuer"):
        await site.ask(site.provider.token(iss="https://evil.example"))
    assert not site.provider.asked


async def test_a_token_that_is_too_long_is_refused_unread(site: Site) -> None:
    token = site.provider.token(more="x" * MAX_CREDENTIAL)
    with pytest.raises(Unauthorized, match=str(MAX_CREDENTIAL)):
        await site.ask(token)
    assert not site.provider.asked


async def test_new_keys_are_found_when_a_token_needs_them(site: Site) -> None:
    await site.ask(site.provider.token())
    site.provider.publish(ONE, TWO)
    site.later(60)
    assert (await site.ask(site.provider.token(kid="two", name="two"))).user == "ann"
    assert site.provider.asked["/jwks"] == 2


async def test_unknown_keys_cause_one_read_in_a_while(site: Site) -> None:
    """Whoever invents key ids cannot have us hammer the provider."""
    await site.ask(site.provider.token())
    site.later(60)
    for number in range(FAILURES):
        with pytest.raises(Unauthorized, match="publish"):
            await site.ask(site.provider.token(kid=f"invented-{number}"))
    assert site.provider.asked["/jwks"] == 2
    with pytest.raises(RateLimited):
        await site.ask(site.provider.token(kid="invented"))


async def test_many_who_wait_share_one_read(site: Site) -> None:
    tokens = [site.provider.token(sub=f"user-{number}") for number in range(20)]
    asked = await asyncio.gather(*map(site.ask, tokens))
    assert [principal.user for principal in asked] == [f"user-{number}" for number in range(20)]
    assert site.provider.asked["/jwks"] == 1


async def test_one_who_waits_and_leaves_does_not_stop_the_others(site: Site) -> None:
    site.provider.hold.clear()
    first = asyncio.create_task(site.ask(site.provider.token()))
    second = asyncio.create_task(site.ask(site.provider.token(sub="bob")))
    while not site.provider.asked:  # noqa: ASYNC110  the server is in another thread
        await asyncio.sleep(0.001)
    first.cancel()
    site.provider.hold.set()
    assert (await second).user == "bob"


async def test_keys_that_were_withdrawn_verify_nothing_any_more(site: Site) -> None:
    """Not even tokens that were verified before."""
    token = site.provider.token()
    await site.ask(token)
    site.provider.publish(TWO)
    site.later(60)
    await site.ask(site.provider.token(kid="two", name="two"))
    with pytest.raises(Unauthorized, match="publish"):
        await site.ask(token)


@pytest.mark.parametrize(
    "page",
    [500, 302, b"", b"{}", b'{"keys": []}', b"x" * 300_000, b"[" * 100_000],
    ids=["500", "302", "empty", "{}", "none", "huge", "deep"],
)
async def test_bad_keys_leave_the_last_good_ones_in_force(site: Site, page: bytes | int) -> None:
    await site.ask(site.provider.token())
    site.provider.pages["/jwks"] = page
    site.later(60)
    with pytest.raises(Unauthorized, match="publish"):
        await site.ask(site.provider.token(kid="two", name="two"))
    assert site.provider.asked["/jwks"] == 2
    assert (await site.ask(site.provider.token(sub="bob"))).user == "bob"


async def test_before_the_first_keys_a_token_is_told_to_wait(site: Site) -> None:
    good = site.provider.pages["/jwks"]
    site.provider.pages["/jwks"] = 500
    token = site.provider.token()
    for _ in range(FAILURES + 1):
        with pytest.raises(Unavailable) as caught:
            await site.ask(token)
    assert caught.value.headers["retry-after"]
    assert site.provider.asked["/jwks"] == 1
    site.provider.pages["/jwks"] = good
    site.later(60)
    assert (await site.ask(token)).user == "ann"


@pytest.mark.parametrize(
    "document",
    [
        b'{"issuer": "https://another.example", "jwks_uri": "https://another.example/jwks"}',
        b'{"issuer": "ISSUER", "jwks_uri": "file:///etc/passwd"}',
        b'{"issuer": "ISSUER", "jwks_uri": "http://192.0.2.1/jwks"}',
        b'{"issuer": "ISSUER"}',
        b"[]",
    ],
)
async def test_a_discovery_that_is_not_about_the_issuer_is_not_believed(site: Site, document: bytes) -> None:
    page = document.replace(b"ISSUER", site.provider.url.encode())
    site.provider.pages["/.well-known/openid-configuration"] = page
    with pytest.raises(Unavailable):
        await site.ask(site.provider.token())
    assert not site.provider.asked["/jwks"]


async def test_a_remembered_token_expires(site: Site) -> None:
    token = site.provider.token(exp=int(time.time()) + 100)
    principal = await site.ask(token)
    assert site.installation.issuers.known(token)
    site.later(131)
    assert site.installation.issuers.known(token) is None
    with pytest.raises(Unauthorized, match="expired"):
        await site.installation.identity.renew(principal)


async def test_a_tenant_that_is_disabled_or_unknown_refuses_its_tokens(make_site: Callable[..., Any]) -> None:
    site = await make_site(tenant=None, tenant_claim="org")
    with pytest.raises(Forbidden):
        await site.ask(site.provider.token(org="nobody"))
    token = site.provider.token(org="acme")
    principal = await site.ask(token)
    await site.installation.write(Tenant(name="acme", disabled=True))
    with pytest.raises(Forbidden):
        await site.ask(token)
    with pytest.raises(Forbidden):
        await site.installation.identity.renew(principal)


async def test_users_of_two_providers_of_a_tenant_are_two(redis_url: str) -> None:
    """Who has the same `sub` at another provider is not the same person."""
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        with ProviderServer() as corp, ProviderServer() as partner:
            issuers = [
                IssuerSettings(
                    name=name, issuer=each.url, audience=[AUDIENCE], tenant="acme", subject_prefix=f"{name}:"
                )
                for name, each in (("corp", corp), ("partner", partner))
            ]
            installation = await make_installation(redis, issuers)
            installation.clock[0] = time.time()
            await installation.write(User(id="u1", tenant="acme", subject="corp:ann", disabled=True))
            with pytest.raises(Unauthorized, match="user"):
                await installation.ask(corp.token(sub="ann"))
            assert (await installation.ask(partner.token(sub="ann"))).user == "partner:ann"
            await installation.issuers.aclose()


async def test_users_who_are_in_no_directory_are_not_asked_for_after_every_change(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And however many they are, their tokens are valid: nobody is told to wait."""
    asked: list[str] = []
    read = site.installation.directory.user_by_subject

    async def counted(tenant: str, subject: str) -> User | None:
        asked.append(subject)
        return await read(tenant, subject)

    monkeypatch.setattr(site.installation.directory, "user_by_subject", counted)
    monkeypatch.setattr(
        RecordCache.__init__, "__kwdefaults__", {**RecordCache.__init__.__kwdefaults__, "unknown_per_second": 3}
    )
    site.installation.view.__init__(site.installation.directory)  # type: ignore[misc]
    await site.installation.view.refresh()
    tokens = [site.provider.token(sub=f"person-{number}") for number in range(8)]
    for round in range(3):
        for token in tokens:
            await site.ask(token)
        await site.installation.write(Tenant(name=f"new-{round}"))
        await site.installation.key()
    assert len(asked) == len(tokens)


async def test_a_user_of_the_directory_may_be_disabled_or_bounded(site: Site) -> None:
    token = site.provider.token(scope="chat models")
    principal = await site.ask(token)
    assert (principal.user, principal.user_id) == ("ann", None)
    await site.installation.write(User(id="u1", tenant="acme", subject="ann", scopes=["models"]))
    for known in (await site.ask(token), await site.installation.identity.renew(principal)):
        assert (known.scopes, known.user, known.user_id) == ({"models"}, "ann", "u1")
    await site.installation.write(User(id="u1", tenant="acme", subject="ann", disabled=True))
    for attempt in (site.ask(token), site.installation.identity.renew(principal)):
        with pytest.raises(Unauthorized, match="user"):
            await attempt
