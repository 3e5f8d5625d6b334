"""Who comes into the console, and what an admin of one tenant finds there."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.e2e.browser import Visit, needs_chromium
from tests.gateway.admin.conftest import ACME, CHAT, OPERATOR
from tests.gateway.admin.console.pages import admins_views, dialog, focused, open_view, press, row, sign_in

pytestmark = needs_chromium

FOREIGN = re.compile(r"\b(shop|operations|other-admin)\b")
"""Names that acme's admin must not see; "other" alone is a word, too."""


@pytest.mark.parametrize(("key", "said"), [("wrong", "does not know this key"), (CHAT, "the scope 'admin:read'")])
def test_a_key_that_may_not_come_in_is_told_why(tab: Visit, key: str, said: str) -> None:
    page = tab.page
    page.goto("/admin/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text(said)
    expect(page.get_by_label("API key")).to_have_value(key)
    assert focused(page) != "body"


def test_a_key_lasts_as_long_as_the_tab_or_until_signing_out(tab: Visit) -> None:
    """Signing out forgets it."""
    page = tab.page
    sign_in(page, OPERATOR, "#/audit")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Audit")
    assert focused(page) == "body", "nobody has done anything yet"
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_text("You are signed out.")).to_be_visible()
    assert focused(page) == "h1"
    assert OPERATOR not in page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}])")
    page.reload()
    expect(page.get_by_label("API key")).to_be_visible()


def test_a_browser_that_has_signed_in_needs_no_key(tab: Visit, signing_in: str) -> None:
    """It may change things, too; signing out ends its session."""
    page = tab.page
    page.goto(signing_in)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    open_view(page, "#/tenants", "Tenants")
    page.get_by_role("button", name="Make a tenant").click()
    dialog(page).get_by_label("Name").fill("bakery")
    press(page, "Make")
    expect(row(page, "bakery")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_text("You are signed out.")).to_be_visible()
    page.reload()
    expect(page.get_by_label("API key")).to_be_visible()


def test_who_could_not_sign_out_is_told(tab: Visit, signing_in: str) -> None:
    """The session lasts."""
    page = tab.page
    page.goto(signing_in)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.route("**/auth/sign-out", lambda route: route.abort())
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("alert")).to_contain_text("You are still signed in")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


def test_an_admin_of_one_tenant_sees_nothing_foreign(tab: Visit) -> None:
    """No name of another tenant, no entry of the operators; a foreign address is not found."""
    page = tab.page
    sign_in(page, ACME)
    views = page.get_by_role("navigation", name="Views").get_by_role("link")
    seen = ["Overview", "Live", "Usage", "Turns", "Comments"]
    own = ["Keys", "Users", "Quotas", "Adapters", "Routes", "Routing", "Caches", "Prices", "Settings"]
    expect(views).to_have_text([*seen, *own, "Playground", "Sessions", "Audit"])
    for address, heading in admins_views("acme").items():
        open_view(page, address, heading)
        expect(page.get_by_role("alert")).to_have_count(0)
        assert not FOREIGN.search(page.locator("body").inner_text()), address
    for address in ("#/tenants/shop/keys", "#/tenants/shop/users", "#/tenants/shop/quotas", "#/turns/resp_1"):
        page.goto(f"/admin/{address}")
        expect(page.get_by_role("alert")).to_contain_text("Not found")
    page.goto("/admin/#/tenants")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
