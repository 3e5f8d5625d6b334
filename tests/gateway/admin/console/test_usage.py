"""Usage in the console: the server's sums, however many rows are shown."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import expect
from redis.asyncio import Redis

from tests.e2e.browser import Visit, needs_chromium
from tests.gateway.admin.conftest import OPERATOR, Shop
from tests.gateway.admin.console.pages import open_view, row, sign_in
from tests.gateway.billing.test_ledger import HOUR, entry
from tests.gateway.billing.test_report import fill

pytestmark = needs_chromium

HOURS = 250


@pytest.fixture
def used(shop: Shop, redis_url: str) -> None:
    """A turn in each of the last 250 hours, by two models."""
    now = int(time.time() * 1000)
    many = [entry(hour, at=now - hour * HOUR, model=f"model-{hour % 2}") for hour in range(HOURS)]

    async def write() -> None:
        async with Redis.from_url(redis_url) as redis:
            await fill(redis, many)

    # Playwright has a loop of its own in this thread.
    with ThreadPoolExecutor() as threads:
        threads.submit(asyncio.run, write()).result()


def test_all_pages_of_a_report_show_the_total_of_the_server(tab: Visit, used: None) -> None:
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/usage?by=hour&measure=turns", "Usage")
    total = page.locator("tfoot tr")
    for shown in ("Rows 1 to 100", "Rows 101 to 200", "Rows 201 to 250"):
        expect(page.get_by_text(f"{shown} of {HOURS}")).to_be_visible()
        expect(total).to_contain_text(f"{HOURS}")
        if shown != "Rows 201 to 250":
            page.get_by_role("link", name="Later rows").press("Enter")
    expect(page.get_by_role("img", name="Turns")).to_be_visible()


def test_two_dimensions_stand_in_one_table(tab: Visit, used: None) -> None:
    """Chosen in the form; the address keeps them."""
    page = tab.page
    sign_in(page, OPERATOR, "#/usage")
    page.get_by_label("By", exact=True).select_option("tenant")
    page.get_by_label("And by").select_option("model")
    page.get_by_role("button", name="Show").press("Enter")
    expect(row(page, "model-0")).to_contain_text("acme")
    expect(row(page, "model-1")).to_contain_text(f"{HOURS // 2}")
    assert "split=model" in page.url
    page.reload()
    expect(page.get_by_label("And by")).to_have_value("model")
    expect(row(page, "model-1")).to_be_visible()


def test_the_file_is_that_of_the_command_line(tab: Visit, used: None, redis_url: str) -> None:
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/usage?by=model", "Usage")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download CSV").click()
    command = [sys.executable, "-m", "gateway.cli", "usage", "--by", "model", "--csv", "-"]
    printed = subprocess.run(command, env={**os.environ, "REDIS_URL": redis_url}, capture_output=True, check=True)
    assert Path(downloading.value.path()).read_bytes() == printed.stdout
