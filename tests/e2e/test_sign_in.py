"""Signing in as operator by the address that a whole `roundhouse serve` prints, in headless Chromium."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from playwright.sync_api import Browser, expect

from tests.e2e.browser import needs_chromium, visit
from tests.e2e.conftest import Installation

pytestmark = needs_chromium

ME = "fetch('/admin/v1/me').then(async (answer) => [answer.status, await answer.json()])"
KEPT = "document.cookie + JSON.stringify({...localStorage}) + JSON.stringify({...sessionStorage})"
ADMIN = re.compile("/admin/")


def test_serve_prints_an_address_that_signs_in_once_and_makes_more(browser: Browser, roundhouse: Installation) -> None:
    """What it has signed in is signed out by a page that needs no script, and that the chat page leads to."""
    said = roundhouse.wait_said("/auth/link")
    [address] = re.findall(r"http://127\.0\.0\.1:\d+/auth/link\?secret=\S+", said)
    with visit(browser, roundhouse.url) as tab:
        page = tab.page
        page.goto(address)
        expect(page).to_have_url(ADMIN)
        status, me = page.evaluate(ME)
        assert (status, me["role"], me["session"]["method"]) == (200, "operator", "link")
        [cookie] = tab.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Lax", "/")
        assert cookie["value"] not in page.evaluate(KEPT)
        page.goto("/")
        page.get_by_text("Connected").click()
        page.get_by_role("link", name="sign out").click()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert page.evaluate(ME)[0] == 401
        answer = page.goto(address)
        assert answer is not None and answer.status == 401
        expect(page.get_by_text("roundhouse admin link")).to_be_visible()
    command = [sys.executable, "-m", "gateway.cli", "admin", "link"]
    environment = {**os.environ, "ROUNDHOUSE_REDIS_DATA": str(roundhouse.folder / "data")}
    another = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    with visit(browser, roundhouse.url) as tab:
        tab.page.goto(another)
        expect(tab.page).to_have_url(ADMIN)
