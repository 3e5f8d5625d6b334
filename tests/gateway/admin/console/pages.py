"""What people do in the console, and what they see there."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from tests.e2e import keyboard

PENDING = re.compile("^(Loading|Waiting for the first)")
"""What stands where something is still being read."""
OPERATORS_VIEWS = {
    "#/": "Overview",
    "#/live": "Live",
    "#/usage": "Usage",
    "#/turns": "Turns",
    "#/comments": "Comments",
    "#/tenants": "Tenants",
    "#/tenants/shop/keys": "Keys of shop",
    "#/tenants/shop/users": "Users of shop",
    "#/tenants/shop/quotas": "Quotas of shop",
    "#/adapters": "Adapters",
    "#/routes": "Routes",
    "#/routing": "Routing",
    "#/caches": "Caches",
    "#/pools": "Pools",
    "#/plan": "Plan",
    "#/prices": "Prices",
    "#/settings": "Settings",
    "#/playground": "Playground",
    "#/sessions": "Sessions",
    "#/audit": "Audit",
}
"""Heading of each view by its address."""
OPERATORS_ONLY = ("Tenants", "Pools", "Plan")
"""Headings of views that are not for a tenant's admin."""


def admins_views(tenant: str) -> dict[str, str]:
    """The same for a tenant's admin."""
    views = {address: heading for address, heading in OPERATORS_VIEWS.items() if heading not in OPERATORS_ONLY}
    return {address.replace("shop", tenant): heading.replace("shop", tenant) for address, heading in views.items()}


def sign_in(page: Page, key: str, address: str = "#/") -> None:
    page.goto(f"/admin/{address}")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()


def open_view(page: Page, address: str, heading: str) -> None:
    """Go to a view, and wait until it is loaded."""
    page.goto(f"/admin/{address}")
    loaded(page, heading)


def loaded(page: Page, heading: str) -> None:
    """Wait until everything in a view is there."""
    expect(page.get_by_role("heading", level=1)).to_have_text(heading)
    expect(page.get_by_text(PENDING)).to_have_count(0)


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


def press(page: Page, name: str) -> None:
    """A button of the open dialog, which closes then, by keys alone."""
    keyboard.press(dialog(page).get_by_role("button", name=name, exact=True))


def row(page: Page, text: str) -> Locator:
    """The row of the view's tables with this text."""
    return page.locator("main .scroll tbody tr").filter(has_text=text)


def focused(page: Page) -> str:
    """The name of the element that has the focus."""
    return str(page.evaluate("document.activeElement.localName"))


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
