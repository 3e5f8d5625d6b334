"""Keys in the console: shown once, rotated, revoked."""

from __future__ import annotations

import time

import httpx2
import redis
from playwright.sync_api import Page, expect

from gateway.access.identity.last_used import LAST_USED_KEY
from tests.e2e import keyboard
from tests.e2e.browser import Visit, needs_chromium
from tests.e2e.page import connected
from tests.gateway.admin.conftest import ACME, Shop
from tests.gateway.admin.console.pages import dialog, focused, press, row, sign_in, wait_until

pytestmark = needs_chromium

EVERYTHING = """JSON.stringify([
  document.documentElement.outerHTML, [...document.querySelectorAll("input, textarea")].map(({ value }) => value),
  { ...sessionStorage }, { ...localStorage }, location.href, history.state,
])"""


def works(shop: Shop, key: str) -> bool:
    return httpx2.get(f"{shop.url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=20).is_success


def shown_key(page: Page) -> str:
    """The key that was just made, after which the dialog is closed and the key is nowhere any more."""
    key = page.locator("pre.made").inner_text()
    assert key in page.evaluate(EVERYTHING)
    press(page, "I have it")
    expect(dialog(page)).to_have_count(0)
    assert key not in page.evaluate(EVERYTHING)
    assert focused(page) != "body"
    return key


def id_of(operator: httpx2.Client, but: str = "") -> str:
    """The id of the key that the test has made, not the one named `but`."""
    keys = operator.get("/tenants/acme/keys").json()["data"]
    (found,) = [key["id"] for key in keys if key["description"] == "build server" and key["id"] != but]
    return str(found)


def test_a_key_is_shown_once_then_rotated_then_revoked(
    tab: Visit, shop: Shop, operator: httpx2.Client, redis_url: str
) -> None:
    """After a rotation both work; revoking one that was used today asks for its name."""
    page = tab.page
    sign_in(page, ACME, "#/tenants/acme/keys")
    keyboard.press(page.get_by_role("button", name="Make a key"))
    dialog(page).get_by_label("Description").fill("build server")
    press(page, "Make")
    old = shown_key(page)
    old_id = id_of(operator)
    assert works(shop, old)

    keyboard.press(row(page, old_id).get_by_role("button", name="Rotate"))
    press(page, "Rotate")
    fresh = shown_key(page)
    expect(row(page, id_of(operator, but=old_id))).to_be_visible()
    assert works(shop, old) and works(shop, fresh)

    with redis.Redis.from_url(redis_url) as client:
        client.zadd(LAST_USED_KEY.format(tenant="acme"), {old_id: int(time.time())})
    keyboard.press(row(page, old_id).get_by_role("button", name="Revoke"))
    revoke = dialog(page).get_by_role("button", name="Revoke", exact=True)
    expect(revoke).to_be_disabled()
    dialog(page).get_by_label("Type build server to confirm").fill("build server")
    revoke.click()
    expect(row(page, old_id)).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    wait_until(lambda: not works(shop, old))
    assert works(shop, fresh)


def test_the_chat_page_gets_the_new_key_alone(tab: Visit) -> None:
    """Not that of who has made it."""
    page = tab.page
    sign_in(page, ACME, "#/tenants/acme/keys")
    keyboard.press(page.get_by_role("button", name="Make a key"))
    press(page, "Make")
    key = page.locator("pre.made").inner_text()
    with page.expect_popup() as opened:
        press(page, "Chat with it")
    tab.watch(opened.value)
    connected(opened.value)
    kept = opened.value.evaluate("JSON.stringify({ ...sessionStorage })")
    assert key in kept and ACME not in kept
    assert ACME in page.evaluate("JSON.stringify({ ...sessionStorage })")


def test_keys_of_the_configuration_file_are_locked(tab: Visit) -> None:
    """And say why."""
    sign_in(tab.page, ACME, "#/tenants/acme/keys")
    locked = row(tab.page, "acme-chat")
    expect(locked).to_contain_text("set in the configuration file")
    expect(locked.get_by_role("button")).to_have_count(0)
