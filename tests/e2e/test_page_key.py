"""Whose key the chat page asks with."""

from __future__ import annotations

import hashlib

from playwright.sync_api import Browser, expect

from tests.e2e.browser import needs_chromium, visit
from tests.e2e.page import answer, answered, ask, connected
from tests.e2e.scripted import ScriptedServer, with_own_key

pytestmark = needs_chromium


def test_an_own_installation_asks_for_the_key(browser: Browser, redis_url: str) -> None:
    """A wrong key is refused in words, the right one is kept for the tab."""
    settings = with_own_key(hashlib.sha256(b"sesame").hexdigest())
    with ScriptedServer(redis_url, settings) as server, visit(browser, server.url) as tab:
        tab.page.goto("/")
        field = tab.page.get_by_label("Key", exact=True)
        field.fill("wrong")
        field.press("Enter")
        expect(tab.page.get_by_role("alert")).to_contain_text("Incorrect API key")
        field.fill("sesame")
        field.press("Enter")
        connected(tab.page)
        tab.page.reload()
        connected(tab.page)
        ask(tab.page, "hello")
        answered(tab.page)
        expect(answer(tab.page)).to_have_text("A short answer.")


def test_another_key_is_taken_when_somebody_has_one(browser: Browser, redis_url: str) -> None:
    """The dialog can be left while the page has a key that works."""
    settings = with_own_key(hashlib.sha256(b"sesame").hexdigest())
    with ScriptedServer(redis_url, settings) as server, visit(browser, server.url) as tab:
        page = tab.page
        page.goto("/")
        field, dialog = page.get_by_label("Key", exact=True), page.get_by_role("dialog")
        field.fill("sesame")
        field.press("Enter")
        connected(page)
        page.get_by_role("button", name="Connected").press("Enter")
        expect(field).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Connected")).to_be_focused()
        page.keyboard.press("Enter")
        field.fill("wrong")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("Incorrect API key")
        page.keyboard.press("Escape")
        expect(dialog).to_be_visible()
        field.fill("sesame")
        field.press("Enter")
        connected(page)
        expect(dialog).to_have_count(0)
        ask(page, "hello")
        answered(page)
        expect(answer(page)).to_have_text("A short answer.")
