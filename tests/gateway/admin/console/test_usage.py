"""Usage in the console: the server's sums, however many rows are shown."""

from __future__ import annotations

import asyncio
import datetime
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from redis.asyncio import Redis

from tests.e2e.browser import Visit, needs_chromium, visit
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
    open_view(page, "#/usage?measure=toString", "Usage")
    expect(page.get_by_role("region", name="Usage")).to_be_visible()


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


def test_the_period_before_stands_beside(tab: Visit, used: None) -> None:
    """Of days those of the same place, of models those of the same name; what was used before only has a row, too."""
    page = tab.page
    sign_in(page, OPERATOR)
    today = datetime.datetime.now(datetime.UTC).date()
    days = [(today - datetime.timedelta(days=back)).isoformat() for back in range(4)]
    open_view(page, f"#/usage?from={days[2]}&to={days[1]}&by=day&measure=turns", "Usage")
    page.get_by_label("Beside it").select_option("The period before")
    page.get_by_role("button", name="Show").press("Enter")
    expect(page.get_by_role("columnheader", name="Turns before")).to_be_visible()
    expect(page.get_by_role("img", name="Turns from")).to_have_count(2)
    for day in days[1:3]:
        expect(row(page, day).get_by_role("cell").last).to_have_text("24")
    expect(page.locator("tfoot td").last).to_have_text("48")
    first, last = (today + datetime.timedelta(days=ahead) for ahead in (1, 12))
    open_view(page, f"#/usage?from={first}&to={last}&by=model&compare=true&measure=turns", "Usage")
    expect(row(page, "model-0").get_by_role("cell")).to_have_text(["$0.00", "0", "0", "0", "0", "0", f"{HOURS // 2}"])


def test_bars_have_a_greatest_width_and_stand_from_edge_to_edge(tab: Visit, used: None) -> None:
    """One day alone does not fill the chart; of many hours each has its share."""
    page = tab.page
    sign_in(page, OPERATOR)
    yesterday = datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=1)

    def bars(days: int, by: str) -> list[list[float]]:
        first = yesterday - datetime.timedelta(days=days - 1)
        open_view(page, f"#/usage?from={first}&to={yesterday}&by={by}&measure=turns", "Usage")
        expect(page.locator(".chart .span span").first).to_contain_text(str(first))
        found: list[list[float]] = page.locator(".chart rect").evaluate_all(
            "bars => bars.map(({ x, width }) => [x.baseVal.value, width.baseVal.value])"
        )
        return found

    assert bars(1, "day") == [[0, 60]]
    assert bars(3, "day") == [[0, 60], [270, 60], [540, 60]]
    hours = bars(2, "hour")
    assert len(hours) == 48 and {width for _, width in hours} == {10}
    assert hours[0][0] == 0 and sum(hours[-1]) == pytest.approx(600)


def test_times_are_local_or_those_of_utc(browser: Browser, shop: Shop) -> None:
    """For all views, and for the next visit."""
    with visit(browser, shop.url, timezone_id="Asia/Kolkata") as tab:
        page = tab.page
        sign_in(page, OPERATOR)
        open_view(page, "#/audit", "Audit")
        shown = page.locator("tbody time").first
        local, utc = shown.inner_text(), str(shown.get_attribute("title"))
        assert utc.endswith(" UTC") and local != utc
        page.get_by_label("Times in UTC").press("Space")
        expect(shown).to_have_text(utc)
        expect(shown).to_have_attribute("title", local)
        page.reload()
        expect(shown).to_have_text(utc)


def test_the_file_is_that_of_the_command_line(tab: Visit, used: None, redis_url: str) -> None:
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/usage?by=model", "Usage")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download CSV").click()
    command = [sys.executable, "-m", "gateway.cli", "usage", "--by", "model", "--csv", "-"]
    printed = subprocess.run(command, env={**os.environ, "REDIS_URL": redis_url}, capture_output=True, check=True)
    assert Path(downloading.value.path()).read_bytes() == printed.stdout
