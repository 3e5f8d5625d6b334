"""Prices and the configuration in the console."""

from __future__ import annotations

import httpx2
from playwright.sync_api import expect

from tests.e2e import keyboard
from tests.e2e.browser import Visit, needs_chromium
from tests.gateway.admin.conftest import ACME, OPERATOR
from tests.gateway.admin.console.pages import dialog, open_view, press, row, sign_in

pytestmark = needs_chromium


def test_a_price_is_set_changed_and_deleted_in_dollars(tab: Visit, operator: httpx2.Client) -> None:
    """The dialog says what changes in dollars, too."""
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/prices", "Prices")
    keyboard.press(page.get_by_role("button", name="Set a price"))
    dialog(page).get_by_label("Model or adapter").fill("team/pirate")
    dialog(page).get_by_label("Tokens read").fill("0.2")
    dialog(page).get_by_label("Tokens written").fill("1.5")
    press(page, "Set")
    expect(row(page, "team/pirate")).to_contain_text("$0.20$0.20$1.50")
    keyboard.press(row(page, "team/pirate").get_by_role("button", name="Change"))
    dialog(page).get_by_label("Of these cached").fill("0.05")
    expect(dialog(page).get_by_role("row").filter(has_text="cached input")).to_contain_text("$0.05 per million tokens")
    press(page, "Set")
    expect(row(page, "team/pirate")).to_contain_text("$0.20$0.05$1.50")
    price = operator.get("/prices/team/pirate").json()
    assert (price["input"], price["cached_input"], price["output"]) == (200_000, 50_000, 1_500_000)
    keyboard.press(row(page, "team/pirate").get_by_role("button", name="Delete"))
    press(page, "Delete")
    expect(row(page, "team/pirate")).to_have_count(0)


def test_an_admin_sees_prices_of_models(tab: Visit) -> None:
    sign_in(tab.page, ACME)
    open_view(tab.page, "#/prices", "Prices")
    expect(row(tab.page, "tiny-small")).to_contain_text("$0.000001")
    expect(tab.page.get_by_role("button", name="Set a price")).to_have_count(0)


def test_settings_are_shown_by_section(tab: Visit) -> None:
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/settings?section=semantic_cache", "Settings")
    expect(row(page, "enabled")).to_contain_text("yesthe configuration")
    expect(page.get_by_role("region")).to_have_count(1)
    page.get_by_label("Section").select_option("")
    keyboard.press(page.get_by_role("button", name="Show"))
    expect(page.get_by_role("heading", name="safety")).to_be_visible()
