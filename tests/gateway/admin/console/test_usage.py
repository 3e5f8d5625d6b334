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
from urllib.parse import urlencode

import httpx2
import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Page, expect
from redis.asyncio import Redis

from gateway.billing.entry import LedgerEntry
from gateway.cli.root import main
from tests.e2e.browser import Visit, needs_chromium, visit
from tests.gateway.admin.conftest import ACME, OPERATOR, Shop
from tests.gateway.admin.console.pages import loaded, open_view, row, sign_in
from tests.gateway.billing.test_ledger import HOUR, entry
from tests.gateway.billing.test_report import fill

pytestmark = needs_chromium

HOURS = 250


@pytest.fixture
def used(shop: Shop, redis_url: str) -> None:
    """A turn in each of the last 250 hours, by two models."""
    now = int(time.time() * 1000)
    write(
        redis_url,
        [
            entry(hour, at=now - hour * HOUR, model=f"model-{hour % 2}", picodollars=7_000_000 + hour)
            for hour in range(HOURS)
        ],
    )


@pytest.fixture
def various(shop: Shop, redis_url: str) -> datetime.date:
    """Turns of the last hours and 29 and 30 days ago, no two alike -> today. Some names are to be quoted in CSV."""
    noon = datetime.datetime.now(datetime.UTC).replace(hour=12, minute=0)
    days = [int((noon - datetime.timedelta(days=back)).timestamp() * 1000) for back in (29, 30)]
    hours = [int(time.time() * 1000) - hour * HOUR for hour in range(70)]
    write(
        redis_url,
        [
            entry(
                number,
                at=at,
                tenant=("acme", "other")[number % 2],
                model=("llama", "org/mistral, 7b")[number % 3 == 0],
                adapter=(None, "pirate", '="json"')[number % 5 % 3],
                key=("ci", "laptop")[number % 7 == 0],
                user=(None, "ada", "=bob")[number % 11 % 3],
                cache=("miss", "hit")[number % 4 == 0],
                picodollars=number * 1_000_003,
            )
            for number, at in enumerate([*hours, *days], 1)
        ],
    )
    return noon.date()


def write(redis_url: str, turns: list[LedgerEntry]) -> None:
    """Enter turns into the ledger."""

    async def enter() -> None:
        async with Redis.from_url(redis_url) as redis:
            await fill(redis, turns)

    # Playwright has a loop of its own in this thread.
    with ThreadPoolExecutor() as threads:
        threads.submit(asyncio.run, enter()).result()


def printed(redis_url: str, *options: str) -> bytes:
    """What `roundhouse usage --csv` writes."""
    command = ["usage", *options, "--csv", "-"]
    with ThreadPoolExecutor() as threads:
        result = threads.submit(CliRunner().invoke, main, command, env={"REDIS_URL": redis_url}).result()
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def downloaded(page: Page) -> bytes:
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download CSV").press("Enter")
    return Path(downloading.value.path()).read_bytes()


def offered(page: Page, label: str) -> list[str]:
    """The values of a field."""
    options = page.get_by_label(label, exact=True).get_by_role("option")
    found: list[str] = options.evaluate_all("options => options.map(({ value }) => value)")
    return found


def show(page: Page, **query: str) -> None:
    """Open the view with these filters, and wait until it has them."""
    page.goto(f"/admin/#/usage?{urlencode(query)}")
    for label, name in (("By", "by"), ("And by", "split")):
        expect(page.get_by_label(label, exact=True)).to_have_value(query.get(name, ""))
    loaded(page, "Usage")


def test_all_pages_of_a_report_show_the_total_of_the_server(tab: Visit, operator: httpx2.Client, used: None) -> None:
    """Which is the sum of their rows."""
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/usage?by=hour&measure=turns", "Usage")
    total, turns = page.locator("tfoot tr").get_by_role("cell"), 0
    sums = operator.get("/usage", params={"by": "hour"}).json()["total"]
    assert (sums["turns"], sums["cost_microdollars"]) == (HOURS, 1750)
    names = ("turns", "input_tokens", "cached_input_tokens", "output_tokens", "cache_hits")
    for shown in ("Rows 1 to 100", "Rows 101 to 200", "Rows 201 to 250"):
        expect(page.get_by_text(f"{shown} of {HOURS}")).to_be_visible()
        expect(total).to_have_text(["$0.00175", *(f"{sums[name]:,}" for name in names)])
        turns += sum(int(row.get_by_role("cell").nth(1).inner_text()) for row in page.locator("main tbody tr").all())
        if shown != "Rows 201 to 250":
            page.get_by_role("link", name="Later rows").press("Enter")
    assert turns == HOURS
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


def test_the_file_is_that_of_the_command_line(tab: Visit, various: datetime.date, redis_url: str) -> None:
    """Without any filter: both are about 30 days."""
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/usage?by=day", "Usage")
    command = [sys.executable, "-m", "gateway.cli", "usage", "--csv", "-"]
    environment = {**os.environ, "REDIS_URL": redis_url}
    while True:
        day = datetime.datetime.now(datetime.UTC).date()
        file = downloaded(page)
        text = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
        if day == datetime.datetime.now(datetime.UTC).date():
            break
    assert file == text
    assert text.count(b"\r\n") >= 4


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_the_file_is_that_of_the_command_line_for_every_grouping(
    tab: Visit, various: datetime.date, redis_url: str, every: bool
) -> None:
    """Which the view offers to an operator, by one thing and by two."""
    page = tab.page
    sign_in(page, OPERATOR, "#/usage")
    loaded(page, "Usage")
    first, last = str(various - datetime.timedelta(days=30)), str(various)
    end = str(various + datetime.timedelta(days=1))
    groupings = [(by, split) for by in offered(page, "By") for split in offered(page, "And by")]
    assert len(groupings) == 7 * 8
    if not every:  # each of them once alone, and as the first and the second of two
        groupings = [groupings[8 * each + other] for each in range(7) for other in (0, 1 + (each + 1) % 7)]
    files = set()
    for by, split in groupings:
        show(page, **{"from": first, "to": last, "by": by}, **({"split": split} if split else {}))
        options = [f"--by={name}" for name in (by, split) if name]
        files.add(file := downloaded(page))
        assert file == printed(redis_url, "--from", first, "--to", end, *options), (by, split)
    assert len(files) == len(groupings)


def test_an_admin_s_file_is_that_of_the_command_line_for_the_tenant(
    tab: Visit, various: datetime.date, redis_url: str
) -> None:
    """With filters, too."""
    page = tab.page
    sign_in(page, ACME, "#/usage")
    loaded(page, "Usage")
    first, last, end = (str(various + datetime.timedelta(days=ahead)) for ahead in (-30, 0, 1))
    names = offered(page, "By")
    assert len(names) == 6
    for by in names:
        filters = {"model": "org/mistral, 7b", "key": "ci"} if by == "user" else {}
        show(page, **{"from": first, "to": last, "by": by}, **filters)
        options = [f"--{name}={value}" for name, value in filters.items()]
        file = downloaded(page)
        assert file == printed(redis_url, "--tenant=acme", "--from", first, "--to", end, f"--by={by}", *options), by
        assert file.count(b"\r\n") >= 2, by
