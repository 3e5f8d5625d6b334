"""Signing in at an identity provider in headless Chromium."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from playwright.sync_api import Browser, Page, Response, expect

from gateway.config.identity import IdentitySettings
from gateway.config.settings import TenantSettings, demo_settings
from tests.e2e.browser import Visit, chromium, needs_chromium, violations, visit
from tests.e2e.page import answered, ask, connected
from tests.gateway.access.identity.sign_in_provider import SECRET, SignInProviderServer
from tests.gateway.conftest import Serve, Served
from tests.gateway.thread import ServingThread

pytestmark = needs_chromium

HOST = "chat.example.com"
ME = "fetch('/admin/v1/me').then(async (answer) => [answer.status, await answer.json()])"
KEPT = "document.cookie + JSON.stringify({...localStorage}) + JSON.stringify({...sessionStorage})"


READABLE = """async () => {
  const asked = (request) => new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
  const found = [document.documentElement.outerHTML, document.cookie, { ...localStorage }, { ...sessionStorage }];
  for (const { name } of await indexedDB.databases()) {
    const database = await asked(indexedDB.open(name));
    for (const store of database.objectStoreNames) {
      found.push(await asked(database.transaction(store).objectStore(store).getAll()));
    }
    database.close();
  }
  for (const name of await caches.keys()) {
    const cache = await caches.open(name);
    for (const { url } of await cache.keys()) found.push(url, await (await cache.match(url)).text());
  }
  return JSON.stringify(found);
}"""
"""All that a script of the page can read."""
CLOSES = """window.closedWith = [];
window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    this.addEventListener("close", ({ code }) => window.closedWith.push(code));
  }
};"""
"""Has a page know how its WebSockets were closed."""
CLOSED = """async (count) => {
  while (window.closedWith.length < count) await new Promise((resolve) => setTimeout(resolve, 20));
  return window.closedWith;
}"""
"""How they were, once so many are."""
TURN = """async () => {
  const body = JSON.stringify({ model: "auto", input: "hello", max_output_tokens: 2 });
  const headers = { "content-type": "application/json" };
  const answer = await fetch("/v1/responses", { method: "POST", headers, body });
  const opened = new Promise((resolve) => {
    const socket = new WebSocket("/v1/responses");
    socket.onopen = () => resolve(true);
    socket.onerror = () => resolve(false);
  });
  return [answer.status, (await answer.json()).error?.code ?? null, await opened];
}"""
"""Asks a question with the browser's cookies, and opens a WebSocket: status, code of the error, whether it opened."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(f"--host-resolver-rules=MAP {HOST} 127.0.0.1") as browser:
        yield browser


@pytest.fixture
def provider() -> Iterator[SignInProviderServer]:
    with SignInProviderServer() as provider:
        yield provider


@pytest.fixture
def served(serve: Serve, provider: SignInProviderServer, tmp_path: Path, unsignalled: None) -> Iterator[Served]:
    (tmp_path / "client").write_text(SECRET)
    provider.person = {"sub": "ann", "roles": ["chat", "models", "admin:read"]}
    issuer = provider.issuer(str(tmp_path / "client"), title="Example", scopes_claim="roles")

    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[Served]:
        tenants = [*demo_settings().tenants, TenantSettings(name="other")]  # no embedded default, whose key is told
        async with serve(identity=IdentitySettings(issuers=[issuer]), tenants=tenants) as served:
            yield served

    with ServingThread(serving) as served:
        yield served


@contextlib.asynccontextmanager
async def over_tls(served: Served, bound: socket.socket) -> AsyncIterator[None]:
    """Have a gateway answer at another socket, too, by HTTPS."""
    server = served.server
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert(HOST).configure_cert(context)

    def protocol() -> asyncio.Protocol:
        make: Any = server.config.http_protocol_class
        made: asyncio.Protocol = make(server.config, server.server_state, server.lifespan.state)
        return made

    listening = await asyncio.get_running_loop().create_server(protocol, sock=bound, ssl=context)
    try:
        yield
    finally:
        listening.close()


@pytest.fixture(params=["http", "https"])
def site(
    request: pytest.FixtureRequest, serve: Serve, provider: SignInProviderServer, tmp_path: Path, unsignalled: None
) -> Iterator[str]:
    """Address of a gateway on the browser's own machine, or of one elsewhere."""
    (tmp_path / "client").write_text(SECRET)
    provider.person = {"sub": "ann", "roles": ["chat", "models"]}
    issuer = provider.issuer(str(tmp_path / "client"), title="Example", scopes_claim="roles")
    bound = socket.create_server(("127.0.0.1", 0))
    elsewhere = f"https://{HOST}:{bound.getsockname()[1]}"

    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        tenants = [*demo_settings().tenants, TenantSettings(name="other")]
        identity = IdentitySettings(issuers=[issuer])
        server = {"allowed_origins": [elsewhere]}
        async with serve(identity=identity, tenants=tenants, server=server) as served, over_tls(served, bound):
            yield elsewhere if request.param == "https" else served.url

    with bound, ServingThread(serving) as address:
        yield address


def signed_in(tab: Visit) -> list[Response]:
    """Begin at the chat page, which asks for a key, and come back to it; returns how the sign-in was begun."""
    begun: list[Response] = []
    page = tab.page
    page.on("response", lambda response: begun.append(response) if response.url.endswith("/sign-in/idp") else None)
    page.goto("/")
    page.get_by_role("dialog", name="API key").get_by_role("link", name="Sign in without a key").click()
    page.get_by_role("link", name="Example").click()
    chats(page)
    return begun


def chats(page: Page) -> None:
    connected(page)
    ask(page, "hello")
    answered(page)
    expect(page.locator("article[data-status='failed']")).to_have_count(0)


def test_cookies_have_their_flags_and_no_script_reads_a_token(
    browser: Browser, site: str, provider: SignInProviderServer
) -> None:
    """While somebody signs in and chats, on this machine and elsewhere by HTTPS."""
    secure = site.startswith("https:")
    prefix, port = ("__Host-roundhouse-", "") if secure else ("roundhouse-", site.rpartition(":")[2])
    with visit(browser, site, ignore_https_errors=True) as tab:
        [begun] = signed_in(tab)
        given = begun.all_headers()["set-cookie"]
        assert given.startswith(f"{prefix}sign-in{port and '-' + port}=")
        flags = {part.strip().lower() for part in given.split(";")[1:]}
        assert {"httponly", "samesite=lax", "path=/"} <= flags and ("secure" in flags) == secure
        assert not any(flag.startswith("domain") for flag in flags)
        [cookie] = tab.context.cookies()
        assert cookie["name"] == f"{prefix}session{port and '-' + port}"
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Lax", secure)
        assert (cookie["path"], cookie["domain"]) == ("/", HOST if secure else "127.0.0.1")
        [token] = provider.issued
        readable = tab.page.evaluate(READABLE)
        assert "hello" in readable
        for secret in (cookie["value"], token, token.rpartition(".")[2], SECRET):
            assert secret not in readable


@pytest.mark.parametrize("site", [pytest.param("http", marks=pytest.mark.deep), "https"], indirect=True)
def test_signing_out_ends_the_session_and_the_sockets_of_all_tabs(browser: Browser, site: str) -> None:
    """Each says so; nothing is answered any more, also to whoever has kept the cookie."""
    with visit(browser, site, ignore_https_errors=True) as tab:
        tab.context.add_init_script(CLOSES)
        signed_in(tab)
        pages = [tab.page, tab.context.new_page()]
        tab.watch(pages[1])
        pages[1].goto("/")
        chats(pages[1])
        assert tab.page.evaluate(TURN) == [200, None, True]
        [kept] = tab.context.cookies()
        leaving = tab.context.new_page()
        leaving.goto("/auth/sign-in")
        leaving.get_by_role("button", name="Sign out").click()
        expect(leaving.get_by_role("link", name="Example")).to_be_visible()
        for page, sockets in zip(pages, (2, 1), strict=True):
            expect(page.get_by_role("dialog", name="API key")).to_contain_text("You are not signed in any more.")
            expect(page.locator("#connection")).to_have_text("Key needed")
            assert page.evaluate(CLOSED, sockets) == [4401] * sockets
            assert page.evaluate(TURN) == [401, "missing_api_key", False]
        assert tab.context.cookies() == []
        flags: Any = {name: kept[name] for name in ("name", "value", "httpOnly", "secure", "sameSite")}
        tab.context.add_cookies([{**flags, "url": site}])
        assert tab.page.evaluate(TURN) == [401, "session_ended", False]


def test_somebody_signs_in_at_a_provider(browser: Browser, served: Served) -> None:
    """A WebSocket of the page opens without a key, and is closed when the session ends."""
    with visit(browser, served.url) as tab:
        page = tab.page
        page.goto("/auth/sign-in")
        page.get_by_role("link", name="Example").click()
        expect(page).to_have_url(re.compile("/admin/"))
        status, me = page.evaluate(ME)
        assert (status, me["user"], me["role"]) == (200, "ann", "tenant_admin")
        page.evaluate(
            """() => new Promise((opened) => {
                const socket = new WebSocket("/v1/responses");
                socket.onopen = opened;
                window.socketClosed = new Promise((closed) => { socket.onclose = (event) => closed(event.code); });
            })"""
        )
        assert "eyJ" not in page.evaluate(KEPT)
        assert page.evaluate("fetch('/auth/sign-out', { method: 'POST' }).then((answer) => answer.status)") == 204
        assert page.evaluate("window.socketClosed") == 4401
        assert page.evaluate(ME)[0] == 401


def test_the_chat_page_needs_no_key_then(browser: Browser, served: Served) -> None:
    """Until the session ends: then it asks again."""
    with visit(browser, served.url) as tab:
        page = tab.page
        page.goto("/")
        dialog = page.get_by_role("dialog", name="API key")
        dialog.get_by_role("link", name="Sign in without a key").click()
        page.get_by_role("link", name="Example").click()
        expect(page).to_have_url(re.compile("/admin/"))
        page.goto("/")
        connected(page)
        expect(dialog).to_be_hidden()
        ask(page, "hello")
        answered(page)
        page.locator("#connection").click()
        expect(dialog.get_by_role("link", name="Signed in: see as whom, or sign out")).to_be_visible()
        page.evaluate("fetch('/auth/sign-out', { method: 'POST' })")
        expect(dialog).to_contain_text("You are not signed in any more.")
        expect(dialog.get_by_role("link", name="Sign in without a key")).to_be_visible()


def test_a_german_browser_signs_in_in_german(browser: Browser, served: Served) -> None:
    """Ways to sign in, why nobody has, and who has."""
    with visit(browser, served.url, locale="de-DE") as tab:
        page = tab.page
        page.goto("/auth/sign-in")
        heading = page.get_by_role("heading", level=1)
        expect(heading).to_have_text("Anmelden")
        expect(page).to_have_title("Anmelden · Roundhouse")
        assert violations(page) == []
        page.goto("/auth/callback")
        expect(heading).to_have_text("Die Anmeldung ist fehlgeschlagen")
        expect(page.get_by_text("Diese Anmeldung wurde in einem anderen Browser")).to_be_visible()
        page.get_by_role("link", name="Wege zur Anmeldung").click()
        page.get_by_role("link", name="Example").click()
        expect(page).to_have_url(re.compile("/admin/"))
        page.goto("/auth/sign-in")
        expect(page.get_by_text("Angemeldet als ann.")).to_be_visible()
        expect(page.get_by_role("button", name="Abmelden")).to_be_visible()
        assert violations(page) == []
