"""Signing in at an identity provider over real HTTP, and what must not be taken for a sign-in."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest

from gateway.access.identity.code_flow import LIFETIME, CodeFlow
from gateway.access.identity.issuers import Issuers
from gateway.access.identity.tokens import Claims
from gateway.errors import NotFound, SignInFailed, Unauthorized, Unavailable
from gateway.storage.seal import Seal
from tests.gateway.access.identity.sign_in_provider import CLIENT, SECRET, SignInProviderServer

pytestmark = pytest.mark.anyio

ORIGIN = "https://chat.example.com"


class Site:
    """A gateway's part in signing in, and the provider."""

    def __init__(self, provider: SignInProviderServer, secret_file: Path) -> None:
        self.provider = provider
        self.secret_file = secret_file
        self.now = time.time()
        self.issuers: list[Issuers] = []
        self.trust()

    def trust(self, **fields: Any) -> None:
        """Trust the provider with these settings."""
        issuer = self.provider.issuer(str(self.secret_file), **fields)
        self.issuers.append(Issuers([issuer]))
        self.flow = CodeFlow(self.issuers[-1], Seal(bytes(32)), clock=lambda: self.now)

    async def visit(self, back: str = "") -> tuple[dict[str, str], str]:
        """Go to the provider and come back; returns what the browser brings along, and what it has kept."""
        address, kept = await self.flow.begin("idp", ORIGIN, back)
        async with httpx2.AsyncClient() as browser:
            answer = await browser.get(address)
        assert answer.status_code == 302, answer.text
        location = urlsplit(answer.headers["location"])
        assert f"{location.scheme}://{location.netloc}{location.path}" == f"{ORIGIN}/auth/callback"
        return dict(parse_qsl(location.query)), kept

    async def sign_in(self, back: str = "") -> tuple[Claims, str]:
        return await self.flow.finish(*await self.visit(back))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    with SignInProviderServer() as provider:
        site = Site(provider, file)
        yield site
        for issuers in site.issuers:
            await issuers.aclose()


async def test_somebody_who_agrees_has_signed_in(site: Site) -> None:
    """With the claims of the ID token, at the path where it began; the provider is asked once how."""
    site.trust(operators=["ann"], scope_prefix="rh:", sign_in_scopes=["groups"], scopes_claim="groups")
    site.provider.person = {"sub": "ann", "groups": ["rh:admin:read", "other"]}
    claims, back = await site.sign_in("/admin/")
    assert (claims.issuer, claims.subject, claims.tenant, claims.operator) == ("idp", "ann", "demo", True)
    assert claims.scopes == {"admin:read"}
    assert back == "/admin/"
    await site.sign_in()
    assert site.provider.asked["/.well-known/openid-configuration"] == 1


async def test_what_the_browser_keeps_tells_it_nothing(site: Site) -> None:
    address, kept = await site.flow.begin("idp", ORIGIN, "")
    asked = dict(parse_qsl(urlsplit(address).query))
    assert asked["scope"] == "openid"
    assert asked["state"] not in kept and asked["nonce"] not in kept
    assert not {"code_verifier", "client_secret"} & asked.keys()


@pytest.mark.parametrize("change", ["state", "no state", "kept", "nothing kept", "damaged", "too late"])
async def test_only_the_browser_that_began_can_end_it_and_in_time(site: Site, change: str) -> None:
    answer, kept = await site.visit()
    _, another = await site.visit()
    match change:
        case "state":
            answer["state"] = "x"
        case "no state":
            del answer["state"]
        case "kept":
            kept = another
        case "nothing kept":
            kept = ""
        case "damaged":
            kept = kept[:-4] + "AAAA"
        case "too late":
            site.now += LIFETIME + 1
    with pytest.raises(SignInFailed):
        await site.flow.finish(answer, kept)
    assert site.provider.asked["/token"] == 0


async def test_another_gateway_of_the_installation_can_end_it(site: Site) -> None:
    answer, kept = await site.visit()
    site.trust()
    claims, _ = await site.flow.finish(answer, kept)
    assert claims.subject == "ann"


async def test_a_code_works_once(site: Site) -> None:
    answer, kept = await site.visit()
    await site.flow.finish(answer, kept)
    with pytest.raises(SignInFailed, match="invalid_grant"):
        await site.flow.finish(answer, kept)


@pytest.mark.parametrize("sender", ["https://evil.example", None])
async def test_an_answer_of_another_provider_is_refused(site: Site, sender: str | None) -> None:
    """RFC 9207: also one that does not say whose it is, where the provider always says so."""
    answer, kept = await site.visit()
    if sender is None:
        del answer["iss"]
    else:
        answer["iss"] = sender
    with pytest.raises(SignInFailed, match="another identity provider"):
        await site.flow.finish(answer, kept)


async def test_a_provider_need_not_say_whose_answer_it_is(site: Site) -> None:
    site.provider.discover(authorization_response_iss_parameter_supported=False)
    answer, kept = await site.visit()
    del answer["iss"]
    assert (await site.flow.finish(answer, kept))[0].subject == "ann"


@pytest.mark.parametrize(
    ("claims", "word"),
    [
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"aud": "roundhouse"}, "aud"),
        ({"aud": [CLIENT, "other"], "azp": "other"}, "azp"),
        ({"exp": 1}, "expired"),
        ({"iss": "https://evil.example"}, "iss"),
        ({"sub": None}, "sub"),
    ],
)
async def test_a_token_that_was_not_made_for_this_is_refused(site: Site, claims: dict[str, Any], word: str) -> None:
    site.provider.person = {"sub": "ann", **claims}
    with pytest.raises(Unauthorized, match=word):
        await site.sign_in()


async def test_who_does_not_agree_is_told_so(site: Site) -> None:
    """By the provider's code; whatever else stands in its place is not shown."""
    site.provider.refusal = "access_denied"
    with pytest.raises(SignInFailed, match=r"refused \(access_denied\)"):
        await site.sign_in()
    site.provider.refusal = "<b>call 555-1234</b>"
    with pytest.raises(SignInFailed) as caught:
        await site.sign_in()
    assert "555" not in caught.value.message


@pytest.mark.parametrize("supported", [["client_secret_basic"], ["client_secret_post"]])
async def test_the_secret_is_sent_as_the_provider_wants_it(site: Site, supported: list[str]) -> None:
    site.provider.discover(token_endpoint_auth_methods_supported=supported)
    assert (await site.sign_in())[0].subject == "ann"


async def test_a_new_secret_is_read_and_a_wrong_one_told(site: Site) -> None:
    site.secret_file.write_text("wrong")
    with pytest.raises(SignInFailed, match="invalid_client"):
        await site.sign_in()
    site.secret_file.write_text(SECRET)
    await site.sign_in()
    site.secret_file.unlink()
    with pytest.raises(Unavailable, match="secret"):
        await site.sign_in()


@pytest.mark.parametrize("page", [500, 302, b"{", b"{}", b'{"id_token": 7}'])
async def test_an_answer_without_a_token_signs_nobody_in(site: Site, page: bytes | int) -> None:
    site.provider.pages["/token"] = page
    with pytest.raises(SignInFailed, match="no token"):
        await site.sign_in()


async def test_a_provider_that_is_away_is_told(site: Site) -> None:
    answer, kept = await site.visit()
    site.provider.pages["/token"] = b"x" * 300_000
    with pytest.raises(Unavailable):
        await site.flow.finish(answer, kept)
    site.provider.pages["/.well-known/openid-configuration"] = 500
    site.trust()
    with pytest.raises(Unavailable, match="reached"):
        await site.flow.begin("idp", ORIGIN, "")


@pytest.mark.parametrize("field", ["authorization_endpoint", "token_endpoint"])
async def test_people_are_sent_to_https_addresses_only(site: Site, field: str) -> None:
    site.provider.discover(**{field: "http://login.example.com/x"})
    with pytest.raises(Unavailable):
        await site.flow.begin("idp", ORIGIN, "")


async def test_a_provider_without_a_client_offers_no_sign_in(site: Site) -> None:
    assert [each.address for each in site.flow.providers] == ["/auth/sign-in/idp"]
    site.trust(client_id=None, client_secret_file=None)
    assert site.flow.providers == []
    with pytest.raises(NotFound):
        await site.flow.begin("idp", ORIGIN, "")


async def test_keys_at_an_address_of_their_own(site: Site) -> None:
    """Beside what discovery says of the sign-in."""
    site.provider.pages["/keys"] = site.provider.pages.pop("/jwks")
    site.trust(jwks_url=f"{site.provider.url}/keys")
    assert (await site.sign_in())[0].subject == "ann"
