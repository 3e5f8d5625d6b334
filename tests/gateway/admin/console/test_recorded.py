"""The console looks as it was recorded, box by box."""

from __future__ import annotations

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browser import needs_chromium, visit
from tests.e2e.layouts import HEIGHT, WIDTHS, Layouts, in_boxes
from tests.gateway.admin.conftest import OPERATOR, Shop
from tests.gateway.admin.console.pages import dialog, open_view, sign_in

pytestmark = needs_chromium

FRAME = {"bar": "header.bar", "views": "nav.views", "heading": "main h1"}


@pytest.mark.parametrize("width", WIDTHS)
def test_the_console_looks_as_recorded(whole_browser: Browser, shop: Shop, operator: httpx2.Client, width: int) -> None:
    """Before signing in, a list, limits as bars, a form, and a dialog."""
    layouts = Layouts(f"console-{width}", whole_browser)
    limits = {"quota": {"requests_per_minute": 600, "concurrent_turns": 4}}
    operator.put("/tenants/shop/quotas", json=limits, headers={"if-match": "*"}).raise_for_status()
    with visit(whole_browser, shop.url, viewport={"width": width, "height": HEIGHT}) as tab:
        page = tab.page
        in_boxes(page)
        page.goto("/admin/")
        expect(page.get_by_label("API key")).to_be_visible()
        layouts.compare(page, "sign-in", {"heading": "h1", "form": "form", "field": "form .field"})
        sign_in(page, OPERATOR)
        open_view(page, "#/prices", "Prices")
        layouts.compare(page, "prices", {**FRAME, "table": "main table"})
        open_view(page, "#/tenants/shop/quotas", "Quotas of shop")
        layouts.compare(
            page, "quotas", {**FRAME, "choices": "main nav", "table": "main table", "bar of a limit": "main svg"}
        )
        open_view(page, "#/tenants", "Tenants")
        layouts.compare(page, "tenants", {**FRAME, "table": "main table", "button": "main .heading button"})
        page.get_by_role("button", name="Make a tenant").click()
        expect(dialog(page).get_by_label("Name")).to_be_visible()
        layouts.compare(page, "change", {"dialog": "dialog", "field": "dialog .field", "actions": "dialog .actions"})
