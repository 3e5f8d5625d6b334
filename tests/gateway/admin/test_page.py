"""The admin API's page in headless Chromium."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from gateway.admin.app import API
from tests.e2e.browser import needs_chromium, visit
from tests.gateway.admin.conftest import OPERATOR, Shop

pytestmark = needs_chromium


def test_it_shows_every_endpoint_and_calls_one(browser: Browser, shop: Shop) -> None:
    """With the key that was typed; a change gets the ETag that the last answer gave. No error in the console."""
    with visit(browser, shop.url) as tab:
        page = tab.page
        page.goto("/admin/api/")
        expect(page.locator("details.operation")).to_have_count(len(API.endpoints))
        page.get_by_label("API key").fill(OPERATOR)

        create = page.locator("#create_tenant")
        create.locator("summary").first.click()
        create.get_by_label("Body").fill('{"name": "bakery"}')
        expect(create.locator("pre").first).to_contain_text("curl -X POST")
        expect(create.locator("pre").first).not_to_contain_text(OPERATOR)
        create.get_by_role("button", name="Send").click()
        expect(create.get_by_role("status")).to_contain_text("201 Created")

        show = page.locator("#show_tenant")
        show.locator("summary").first.click()
        show.get_by_label("tenant").fill("bakery")
        show.get_by_role("button", name="Send").click()
        expect(show.get_by_role("status")).to_contain_text('"name": "bakery"')

        change = page.locator("#change_tenant")
        change.locator("summary").first.click()
        change.get_by_label("tenant").fill("bakery")
        change.get_by_label("Body").fill('{"description": "<b>bread</b>"}')
        expect(change.get_by_label("If-Match")).to_have_value(re.compile(r'"\d+"'))
        change.get_by_role("button", name="Send").click()
        expect(change.get_by_role("status")).to_contain_text("<b>bread</b>")


def test_a_description_is_one_text_whose_lines_end_where_the_page_does(browser: Browser, shop: Shop) -> None:
    with visit(browser, shop.url) as tab:
        tab.page.goto("/admin/api/")
        expect(tab.page.locator("details.operation").first).to_be_attached()
        paragraphs = tab.page.locator("main > h1 + p, main > h1 + p + p")
        expect(paragraphs).to_have_text([re.compile("^What an operator"), re.compile("^Every request carries")])
        assert "\n" in str(paragraphs.last.text_content()) and "\n" not in paragraphs.last.inner_text()


def test_a_wrong_key_is_told(browser: Browser, shop: Shop) -> None:
    """As the problem that it is."""
    with visit(browser, shop.url) as tab:
        tab.page.goto("/admin/api/")
        tab.page.get_by_label("API key").fill("wrong")
        show = tab.page.locator("#list_tenants")
        show.locator("summary").first.click()
        show.get_by_role("button", name="Send").click()
        expect(show.get_by_role("status")).to_contain_text("invalid_api_key")
