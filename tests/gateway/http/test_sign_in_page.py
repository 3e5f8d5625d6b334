"""Signing in at an identity provider in headless Chromium."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from gateway.config.identity import IdentitySettings
from gateway.config.settings import TenantSettings, demo_settings
from tests.e2e.browser import chromium, needs_chromium, violations, visit
from tests.e2e.page import answered, ask, connected
from tests.gateway.access.identity.sign_in_provider import SECRET, SignInProviderServer
from tests.gateway.conftest import Serve, Served
from tests.gateway.thread import ServingThread

pytestmark = needs_chromium

ME = "fetch('/admin/v1/me').then(async (answer) => [answer.status, await answer.json()])"
KEPT = "document.cookie + JSON.stringify({...localStorage}) + JSON.stringify({...sessionStorage})"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
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
        page.evaluate("fetch('/auth/sign-out', { method: 'POST' })")
        expect(dialog).to_contain_text("You are not signed in any more.")


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
