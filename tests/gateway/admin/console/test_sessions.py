"""Sessions in the console."""

from __future__ import annotations

import re

import httpx2
from playwright.sync_api import Browser, expect

from tests.e2e import keyboard
from tests.e2e.browser import Visit, needs_chromium, visit
from tests.gateway.admin.conftest import OPERATOR, Shop
from tests.gateway.admin.console.pages import open_view, press, row, sign_in

pytestmark = needs_chromium


def test_a_session_that_is_ended_signs_its_browser_out(
    tab: Visit, browser: Browser, shop: Shop, operator: httpx2.Client, signing_in: str
) -> None:
    """At its next request; the end is in the audit log."""
    with visit(browser, shop.url) as other:
        other.page.goto(signing_in)
        expect(other.page.get_by_role("navigation", name="Views")).to_be_visible()
        sign_in(tab.page, OPERATOR)
        open_view(tab.page, "#/sessions", "Sessions")
        keyboard.press(row(tab.page, "one-time address").get_by_role("button", name="End the session of operator"))
        press(tab.page, "End")
        expect(tab.page.get_by_text("Nobody has signed in with a browser.")).to_be_visible()
        keyboard.press(other.page.get_by_role("link", name="Tenants"))
        expect(other.page.get_by_role("alert")).to_contain_text(re.compile("session has ended|not signed in"))
    actions = [each["action"] for each in operator.get("/audit").json()["data"]]
    assert actions[:2] == ["session.end", "session.begin"]
