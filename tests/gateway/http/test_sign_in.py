"""Signing in with a browser, over real sockets: a one-time address, an identity provider, cookies, other sites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway.access.identity import browser_sessions
from gateway.access.sign_in_links import COMMAND
from gateway.config.identity import IdentitySettings
from tests.gateway.access.identity.sign_in_provider import SECRET, SignInProviderServer
from tests.gateway.conftest import KEY, Serve, Served
from tests.gateway.sockets import ask, assert_error, closed_with

pytestmark = pytest.mark.anyio

ELSEWHERE = "https://chat.example.com"
"""An origin that the server may be reached by, and whose pages are allowed."""


class Tab:
    """A browser's cookies, and requests as its pages send them."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.http = httpx2.AsyncClient(base_url=served.url, timeout=20)

    async def open(self, address: str, **headers: str) -> httpx2.Response:
        """Go to an address that somebody has typed."""
        return await self.http.get(address, headers={"sec-fetch-site": "none", "accept": "text/html", **headers})

    async def fetch(self, method: str, path: str, headers: Mapping[str, str] = {}, **options: Any) -> httpx2.Response:
        """Ask as a page of this server does."""
        own = {"sec-fetch-site": "same-origin", **({} if method == "GET" else {"origin": self.served.url})}
        return await self.http.request(method, path, headers={**own, **headers}, **options)

    async def sign_in(self) -> httpx2.Response:
        """Sign in as operator."""
        return await self.open(await address(self.served))

    async def session(self) -> dict[str, Any] | None:
        """Who has signed in."""
        body: dict[str, Any] = (await self.fetch("GET", "/auth/methods")).json()
        return body["session"]

    @property
    def cookies(self) -> str:
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.http.cookies.jar)

    def socket(self, origin: str | None) -> connect:
        headers = {"cookie": self.cookies, "x-roundhouse-events": "true"} | ({"origin": origin} if origin else {})
        url = f"ws://127.0.0.1:{self.served.port}/v1/responses"
        return connect(url, additional_headers=headers, compression=None)


async def address(served: Served) -> str:
    return f"/auth/link?secret={await served.gateway.sign_in.links.make()}"


@pytest.fixture
async def served(serve: Serve) -> AsyncIterator[Served]:
    async with serve(server={"allowed_origins": [ELSEWHERE]}) as served:
        yield served


@pytest.fixture
async def tab(served: Served) -> AsyncIterator[Tab]:
    tab = Tab(served)
    async with tab.http:
        yield tab


async def test_a_one_time_address_signs_in_as_operator(tab: Tab) -> None:
    answer = await tab.sign_in()
    assert (answer.status_code, answer.headers["location"]) == (303, "/admin/")
    assert answer.headers["cache-control"] == "no-store"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"roundhouse-session-{tab.served.port}=")
    assert {"HttpOnly", "Path=/", "SameSite=lax"} <= {part.strip() for part in cookie.split(";")}
    me = (await tab.fetch("GET", "/admin/v1/me")).json()
    assert (me["role"], me["tenant"], me["user"], me["session"]["method"]) == ("operator", "demo", None, "link")
    session = await tab.session()
    assert session is not None and session["operator"] and "chat" in session["scopes"]


async def test_a_one_time_address_works_once(tab: Tab) -> None:
    """The second time a page says so, and how to get another one."""
    where = await address(tab.served)
    assert (await tab.open(where)).status_code == 303
    tab.http.cookies.clear()
    again = await tab.open(where)
    assert again.status_code == 401
    assert again.headers["content-type"].startswith("text/html")
    assert "set-cookie" not in again.headers
    assert COMMAND in again.text and "used before" in again.text
    assert await tab.session() is None


async def test_looking_at_an_address_ahead_spends_nothing(tab: Tab) -> None:
    """As programs do that show previews, and browsers that load what may be opened."""
    where = await address(tab.served)
    assert (await tab.http.head(where)).status_code == 204
    assert (await tab.open(where, **{"sec-purpose": "prefetch;prerender"})).status_code == 204
    assert (await tab.open(where)).status_code == 303


@pytest.mark.parametrize(
    "headers", [{"x-forwarded-for": "127.0.0.1"}, {"forwarded": "for=127.0.0.1"}, {"host": "chat.example.com"}]
)
async def test_a_one_time_address_works_on_the_machine_itself_only(tab: Tab, headers: dict[str, str]) -> None:
    """Not behind a proxy, nor under another name; trying spends nothing."""
    where = await address(tab.served)
    refused = await tab.open(where, **headers)
    assert refused.status_code == 403
    assert "machine of the gateway" in refused.text
    assert (await tab.open(where)).status_code == 303


async def test_a_signed_in_page_chats_without_a_key(tab: Tab) -> None:
    await tab.sign_in()
    asked = {"model": "auto", "input": "hello", "max_output_tokens": 2}
    answer = await tab.fetch("POST", "/v1/responses", json=asked)
    assert answer.status_code == 200, answer.text
    names = {each["id"] for each in (await tab.fetch("GET", "/v1/models")).json()["data"]}
    assert "tiny-small" in names
    ticket = await tab.fetch("POST", "/v1/tickets")
    assert ticket.status_code == 201


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "own"}, 201),
        ({"origin": "own", "sec-fetch-site": "same-origin"}, 201),
        ({}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ELSEWHERE}, 403),
        ({"origin": "http://localhost:1"}, 403),
        ({"origin": "own", "sec-fetch-site": "same-site"}, 403),
        ({"origin": "own", "sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
    ],
)
async def test_a_change_by_cookie_comes_from_this_servers_page(tab: Tab, headers: dict[str, str], status: int) -> None:
    await tab.sign_in()
    before = (await tab.served.gateway.directory.audit.head()).sequence
    given = {name: tab.served.url if value == "own" else value for name, value in headers.items()}
    answer = await tab.http.post("/admin/v1/tenants", json={"name": "bakery"}, headers=given)
    assert answer.status_code == status, answer.text
    if status == 403:
        assert answer.json()["code"] == "origin_not_allowed"
    assert (await tab.served.gateway.directory.audit.head()).sequence - before == (1 if status == 201 else 0)


async def test_an_allowed_origin_needs_a_key_all_the_same(tab: Tab) -> None:
    """A cookie never makes its request somebody's; browsers are not told that one may be sent."""
    await tab.sign_in()
    refused = await tab.http.get("/v1/models", headers={"origin": ELSEWHERE})
    assert refused.status_code == 403
    assert "access-control-allow-credentials" not in refused.headers
    with_key = await tab.http.get("/v1/models", headers={"origin": ELSEWHERE, "authorization": f"Bearer {KEY}"})
    assert with_key.status_code == 200


async def test_a_key_goes_before_a_cookie(tab: Tab) -> None:
    """Also one that is wrong or may not do it."""
    await tab.sign_in()
    for headers, code in (
        ({"authorization": f"Bearer {KEY}"}, "insufficient_scope"),
        ({"x-api-key": "wrong"}, "invalid_api_key"),
    ):
        answer = await tab.fetch("GET", "/admin/v1/me", headers)
        assert answer.json()["code"] == code
    assert (await tab.fetch("GET", "/admin/v1/me")).status_code == 200


async def test_signing_out_ends_the_session_and_its_sockets(tab: Tab) -> None:
    """And those that a ticket of the session has opened; the cookie is of no use to whoever has kept it."""
    await tab.sign_in()
    kept = tab.cookies
    ticket = (await tab.fetch("POST", "/v1/tickets")).json()["ticket"]
    by_ticket = connect(
        f"ws://127.0.0.1:{tab.served.port}/v1/responses",
        subprotocols=["roundhouse.json", f"roundhouse.ticket.{ticket}"],
        origin=tab.served.url,
    )
    async with tab.socket(tab.served.url) as socket, by_ticket as other, tab.served.connect() as with_key:
        events = await ask(socket, max_output_tokens=2)
        assert events[-1]["type"] in ("response.completed", "response.incomplete")
        answer = await tab.fetch("POST", "/auth/sign-out")
        assert answer.status_code == 204
        assert await asyncio.gather(closed_with(socket), closed_with(other)) == [4401, 4401]
        assert (await ask(with_key, max_output_tokens=2))[-1]["type"] != "error"
    assert tab.cookies == ""
    old = await tab.http.get("/admin/v1/me", headers={"cookie": kept})
    assert (old.status_code, old.json()["code"]) == (401, "session_ended")
    await tab.served.settle()


async def test_signing_out_at_one_gateway_ends_the_sockets_of_another(serve: Serve) -> None:
    async with serve() as one, serve() as other, (tab := Tab(one)).http:
        await tab.sign_in()
        [cookie] = tab.http.cookies.jar
        given = {"cookie": f"roundhouse-session-{other.port}={cookie.value}", "origin": other.url}
        async with connect(f"ws://127.0.0.1:{other.port}/v1/responses", additional_headers=given) as socket:
            assert (await ask(socket, max_output_tokens=2))[-1]["type"] != "error"
            assert (await tab.fetch("POST", "/auth/sign-out")).status_code == 204
            assert await closed_with(socket) == 4401
        await other.settle()


async def test_a_turn_after_signing_out_is_refused_also_before_its_socket_is_closed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser_sessions, "LOOK", 3600.0)
    async with serve() as served, (tab := Tab(served)).http:
        await tab.sign_in()
        async with tab.socket(served.url) as socket:
            assert (await tab.fetch("POST", "/auth/sign-out")).status_code == 204
            [event] = await ask(socket)
            assert_error(event, 401, "session_ended")
        assert served.gateway.turns.running == 0


async def test_a_form_signs_out_too_and_another_sites_does_not(tab: Tab) -> None:
    await tab.sign_in()
    foreign = {"origin": ELSEWHERE, "sec-fetch-site": "cross-site"}
    assert (await tab.fetch("POST", "/auth/sign-out", foreign)).status_code == 403
    assert await tab.session() is not None
    assert "Sign out" in (await tab.open("/auth/sign-in")).text
    answer = await tab.fetch("POST", "/auth/sign-out", {"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/auth/sign-in")
    assert COMMAND in (await tab.open("/auth/sign-in")).text


@pytest.mark.parametrize("origin", [None, "null", ELSEWHERE])
async def test_a_socket_by_cookie_comes_from_this_servers_page(tab: Tab, origin: str | None) -> None:
    await tab.sign_in()
    with pytest.raises(InvalidStatus) as caught:
        async with tab.socket(origin):
            pass
    assert caught.value.response.status_code == 403


async def test_signing_in_again_ends_the_session_before(tab: Tab) -> None:
    await tab.sign_in()
    before = tab.cookies
    await tab.sign_in()
    assert tab.cookies != before
    assert (await tab.http.get("/admin/v1/me", headers={"cookie": before})).status_code == 401


async def test_ways_to_sign_in_are_public(tab: Tab) -> None:
    """Also with a cookie that leads nowhere."""
    tab.http.cookies.set(f"roundhouse-session-{tab.served.port}", "x" * 43, domain="127.0.0.1", path="/")
    answer = await tab.fetch("GET", "/auth/methods")
    assert answer.json() == {"key": True, "providers": [], "link": COMMAND, "session": None}
    page = await tab.open("/auth/sign-in")
    assert "form-action 'self'" in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "same-origin"
    assert (await tab.open("/auth/static/css/sign-in.css")).status_code == 200


class TestProvider:
    """Signing in at an identity provider."""

    @pytest.fixture
    async def provider(self) -> AsyncIterator[SignInProviderServer]:
        with SignInProviderServer() as provider:
            yield provider

    @pytest.fixture
    async def served(self, serve: Serve, provider: SignInProviderServer, tmp_path: Path) -> AsyncIterator[Served]:
        (tmp_path / "client").write_text(SECRET)
        issuer = provider.issuer(str(tmp_path / "client"), title="Example <Corp>", scopes_claim="roles")
        settings = IdentitySettings(issuers=[issuer])
        async with serve(server={"allowed_origins": [ELSEWHERE]}, identity=settings) as served:
            yield served

    async def go(self, tab: Tab, path: str = "/auth/sign-in/idp") -> httpx2.Response:
        """Go to the provider and back."""
        there = await tab.open(path)
        assert there.status_code == 303, there.text
        async with httpx2.AsyncClient() as http:
            back = await http.get(there.headers["location"])
        return await tab.open(back.headers["location"], **{"sec-fetch-site": "cross-site"})

    async def test_a_person_signs_in_and_chats(self, tab: Tab) -> None:
        """No token reaches the browser, and what was begun is forgotten."""
        answer = await self.go(tab)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        session = await tab.session()
        assert session is not None
        assert (session["method"], session["tenant"], session["user"]) == ("idp", "demo", "ann")
        assert not session["operator"]
        assert [cookie.name for cookie in tab.http.cookies.jar] == [f"roundhouse-session-{tab.served.port}"]
        assert "eyJ" not in tab.cookies + answer.text
        async with tab.socket(tab.served.url) as socket:
            assert (await ask(socket, max_output_tokens=2))[-1]["type"] != "error"
        refused = await tab.fetch("GET", "/admin/v1/me")
        assert refused.json()["code"] == "insufficient_scope"
        assert "You are signed in as ann." in (await tab.open("/auth/sign-in")).text

    async def test_an_admin_of_a_tenant_administers_it(self, tab: Tab, provider: SignInProviderServer) -> None:
        provider.person = {"sub": "ann", "roles": ["admin:read", "admin:write"]}
        assert (await self.go(tab)).headers["location"] == "/admin/"
        me = (await tab.fetch("GET", "/admin/v1/me")).json()
        assert (me["role"], me["tenant"], me["user"], me["session"]["method"]) == ("tenant_admin", "demo", "ann", "idp")
        assert "pools" not in me["may"]

    @pytest.mark.parametrize(
        ("wanted", "location"),
        [
            ("/admin/usage?by=model#x", "/admin/usage?by=model#x"),
            ("//evil.example", "/"),
            ("https://evil.example", "/"),
            ("/\\evil.example", "/"),
            ("/a\r\nset-cookie: x=y", "/"),
        ],
    )
    async def test_it_leads_back_to_this_server_only(self, tab: Tab, wanted: str, location: str) -> None:
        path = httpx2.URL("/auth/sign-in/idp", params={"next": wanted})
        assert (await self.go(tab, str(path))).headers["location"] == location

    async def test_the_page_names_providers_and_is_safe(self, tab: Tab) -> None:
        page = await tab.open("/auth/sign-in")
        assert "Example &lt;Corp&gt;" in page.text and 'href="/auth/sign-in/idp"' in page.text
        ways = (await tab.fetch("GET", "/auth/methods")).json()
        assert ways["providers"] == [{"name": "idp", "title": "Example <Corp>", "address": "/auth/sign-in/idp"}]

    async def test_a_failed_sign_in_is_told_on_a_page(self, tab: Tab, provider: SignInProviderServer) -> None:
        alone = await tab.open("/auth/callback?code=x&state=y")
        assert alone.status_code == 401
        assert "begun in another browser" in alone.text and "set-cookie" not in alone.headers
        provider.person = {"sub": None}
        refused = await self.go(tab)
        assert refused.status_code == 401
        assert "Nobody has signed in" in refused.text
        assert (await tab.open("/auth/sign-in/nobody")).status_code == 404
        assert await tab.session() is None

    async def test_away_from_this_machine_it_needs_https(self, tab: Tab) -> None:
        """Which a proxy may have carried; the provider is told the public address."""
        host = {"host": "chat.example.com"}
        plain = await tab.open("/auth/sign-in/idp", **host)
        assert plain.status_code == 400 and "https://" in plain.text
        secure = await tab.open("/auth/sign-in/idp", **host, **{"x-forwarded-proto": "https"})
        assert httpx2.URL(secure.headers["location"]).params["redirect_uri"] == f"{ELSEWHERE}/auth/callback"
        assert secure.headers["set-cookie"].startswith("__Host-roundhouse-sign-in=")
        assert "Secure" in secure.headers["set-cookie"]
