"""Changes in the console: nothing is overwritten unseen, and the audit log has them all."""

from __future__ import annotations

import httpx2
import redis
from playwright.sync_api import Browser, Page, expect

from gateway.access.directory.schema import AUDIT_KEY
from tests.e2e import keyboard
from tests.e2e.browser import Visit, needs_chromium, visit
from tests.gateway.admin.conftest import OPERATOR, Shop
from tests.gateway.admin.console.pages import dialog, focused, open_view, press, row, sign_in

pytestmark = needs_chromium


def test_the_slower_of_two_sees_both_values(browser: Browser, shop: Shop, operator: httpx2.Client) -> None:
    """And nothing is overwritten before that was seen."""

    def limit() -> int:
        return int(operator.get("/tenants/shop/quotas").json()["quota"]["requests_per_minute"])

    def begin(page: Page, requests: str) -> None:
        sign_in(page, OPERATOR, "#/tenants/shop/quotas")
        keyboard.press(page.get_by_role("button", name="Change the tenant's limits"))
        dialog(page).get_by_label("Requests per minute").fill(requests)

    with visit(browser, shop.url) as first, visit(browser, shop.url) as second:
        begin(first.page, "10")
        begin(second.page, "20")
        press(first.page, "Set")
        expect(row(first.page, "requests per minute")).to_be_visible()
        press(second.page, "Set")
        theirs = dialog(second.page).get_by_role("row").filter(has_text="requests per minute")
        expect(theirs.get_by_role("cell")).to_have_text(["10", "20"])
        assert limit() == 10
        press(second.page, "Replace theirs by mine")
        expect(dialog(second.page)).to_have_count(0)
        assert limit() == 20
        keyboard.kept(second.page)


def test_names_of_fields_stay_whole_on_a_narrow_screen(browser: Browser, shop: Shop) -> None:
    with visit(browser, shop.url, viewport={"width": 390, "height": 800}) as tab:
        sign_in(tab.page, OPERATOR, "#/tenants/shop/keys")
        keyboard.press(tab.page.get_by_role("button", name="Make a key"))
        names = dialog(tab.page).locator(".differences th")
        expect(names).to_have_text(["Field", "Now", "Then", "scopes"])
        lines = """names => names.map((name) => {
          const text = document.createRange();
          text.selectNodeContents(name);
          return text.getClientRects().length;
        })"""
        assert names.evaluate_all(lines) == [1, 1, 1, 1]
        assert dialog(tab.page).evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth")


def test_an_admin_limits_a_user_and_an_adapter(tab: Visit, operator: httpx2.Client, shop: Shop) -> None:
    """And takes a limit back; the tenant's own limits are not theirs to set."""
    page = tab.page
    scopes = {"scopes": ["admin:read", "admin:write"]}
    key = operator.post("/tenants/shop/keys", json=scopes).raise_for_status().json()["key"]
    sign_in(page, key, "#/tenants/shop/quotas")
    for kind, name, limit in (("User", shop.names["user"], "7"), ("Adapter", "shop:pirate", "3")):
        keyboard.press(page.get_by_role("button", name="Limit a user or an adapter"))
        dialog(page).get_by_label("Limits of").select_option(kind)
        dialog(page).get_by_label("Name").fill(name)
        dialog(page).get_by_label("Turns at the same time").fill(limit)
        press(page, "Set")
        expect(row(page, name)).to_contain_text(f"concurrent turns00{limit}{limit}")
    keyboard.press(row(page, "shop:pirate").get_by_role("button", name="Change the limits"))
    expect(dialog(page).get_by_label("Turns at the same time")).to_have_value("3")
    dialog(page).get_by_label("Turns at the same time").fill("")
    press(page, "Set")
    expect(row(page, "shop:pirate")).to_have_count(0)
    own = operator.get("/tenants/shop/quotas/own").json()
    assert own == {"users": {shop.names["user"]: {"concurrent_turns": 7}}, "adapters": {}}
    expect(page.get_by_role("button", name="Change the tenant's limits")).to_have_count(0)


def test_a_change_leaves_alone_what_it_did_not_touch(tab: Visit, operator: httpx2.Client) -> None:
    """What somebody else has changed meanwhile stays."""
    page = tab.page
    sign_in(page, OPERATOR, "#/tenants")
    keyboard.press(page.get_by_role("button", name="Change shop"))
    dialog(page).get_by_label("Description").fill("sells cake")
    operator.patch("/tenants/shop", json={"weight": 3}, headers={"if-match": "*"}).raise_for_status()
    press(page, "Change")
    expect(dialog(page).get_by_role("row").filter(has_text="weight")).to_be_visible()
    press(page, "Replace theirs by mine")
    expect(row(page, "sells cake")).to_be_visible()
    shop = operator.get("/tenants/shop").json()
    assert (shop["description"], shop["weight"]) == ("sells cake", 3)


def test_every_change_is_in_the_audit_view(tab: Visit, redis_url: str) -> None:
    """With actor, before and after. The log is intact, and after tampering the entry is named."""
    page = tab.page
    sign_in(page, OPERATOR, "#/tenants")
    keyboard.press(page.get_by_role("button", name="Make a tenant"))
    dialog(page).get_by_label("Name").fill("bakery")
    dialog(page).get_by_label("Description").fill("bread")
    press(page, "Make")
    keyboard.press(page.get_by_role("button", name="Change bakery"))
    dialog(page).get_by_label("Description").fill("cake")
    expect(dialog(page).get_by_role("row").filter(has_text="bread").get_by_role("cell")).to_have_text(["bread", "cake"])
    press(page, "Change")
    expect(row(page, "cake")).to_be_visible()

    open_view(page, "#/audit", "Audit")
    changed = row(page, "tenant.update")
    expect(changed).to_contain_text("operations/key:root")
    expect(changed).to_contain_text("bakery")
    expect(changed).to_contain_text("description: bread → cake")
    expect(row(page, "tenant.create").filter(has_text="bakery")).to_be_visible()
    keyboard.press(page.get_by_role("button", name="Verify the log"))
    expect(page.get_by_text("The log is intact")).to_be_visible()
    with redis.Redis.from_url(redis_url) as client:
        client.xdel(AUDIT_KEY, "2-0")
    keyboard.press(page.get_by_role("button", name="Verify the log"))
    expect(page.get_by_text("The log is broken at entry 2")).to_be_visible()
    assert focused(page) == "button"
