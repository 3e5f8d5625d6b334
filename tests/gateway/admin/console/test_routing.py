"""Routing in the console: traffic by tier, at another quality, and why a text would go where."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest
import redis
from click.testing import CliRunner
from playwright.sync_api import Locator, Page, expect

from gateway.cli.root import main
from gateway.pipeline.routing.decisions import KEY
from gateway.pipeline.routing.judge_days import PAIRS, SPENT
from tests.e2e.browser import Visit, needs_chromium
from tests.gateway.admin.conftest import OPERATOR, OTHER, Shop
from tests.gateway.admin.console.pages import open_view, sign_in
from tests.gateway.pipeline.routing.test_replaying import EASY, HARD, decision
from tests.gateway.pipeline.routing.test_tiers import EXAM

pytestmark = needs_chromium

NONE = "\N{EN DASH}"
"""What stands where nothing is known."""


@pytest.fixture
def logged(shop: Shop, redis_url: str) -> None:
    """Three easy questions of acme's and a hard one, whose answer the others were not worth."""
    with redis.Redis.from_url(redis_url) as client:
        for number, probabilities in enumerate([EASY, HARD, EASY, EASY]):
            entry = msgspec.json.encode(decision(number, *probabilities, at=1_764_000_000_000 + number))
            client.xadd(KEY.format(tenant="acme"), {"decision": entry})


def cells(page: Page, table: str, name: str) -> Locator:
    """The cells of a row, by the name at its beginning."""
    rows = page.get_by_role("region", name=table, exact=True).get_by_role("row")
    return rows.filter(has=page.get_by_role("rowheader", name=name, exact=True)).get_by_role("cell")


def test_traffic_is_shown_by_tier_and_at_another_quality(tab: Visit, logged: None) -> None:
    """With the reasons; single decisions where one tenant is asked for."""
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/routing", "Routing")
    expect(cells(page, "By tier", "small")).to_have_text(["3", "75%", "$0.00"])
    expect(cells(page, "By tier", "large")).to_have_text(["1", "25%", NONE])
    expect(cells(page, "Reasons", "Success that is expected of each tier")).to_have_text(["4", "100%"])
    expect(page.get_by_role("heading", name="Decisions of")).to_have_count(0)
    page.get_by_label("At another quality").fill("100")
    page.get_by_label("Only tenant").fill("acme")
    page.get_by_role("button", name="Show").press("Enter")
    expect(page.get_by_text("At 100, 3 of them would have gone to another tier")).to_be_visible()
    expect(cells(page, "By tier", "large")).to_have_text(["1", "25%", NONE, "4", "100%", NONE])
    expect(cells(page, "By tier", "small")).to_have_text(["3", "75%", "$0.00", "0", "0%", "$0.00"])
    expect(page.get_by_role("heading", name="Decisions of acme")).to_be_visible()
    expect(page.get_by_role("region", name="Decisions").get_by_role("row")).to_have_count(5)


def test_the_judge_is_shown_to_an_operator(tab: Visit, shop: Shop, redis_url: str) -> None:
    """By day: what was judged, what was not, and what it cost."""
    today = datetime.now(UTC)
    day = today.strftime("%Y%m%d")
    with redis.Redis.from_url(redis_url) as client:
        client.hset(PAIRS.format(day=day), mapping={"preferred": 3, "tie": 1, "budget": 2, "given_up": 1})
        client.set(SPENT.format(day=day), 1_230_000 * 10**6)
    sign_in(tab.page, OPERATOR)
    open_view(tab.page, "#/routing", "Routing")
    expect(tab.page.get_by_text("No model judges.")).to_be_visible()
    expect(cells(tab.page, "Judge", today.strftime("%Y-%m-%d"))).to_have_text(
        ["7", "4", "3", "budget 2, given up 1", "$1.23"]
    )


def test_an_admin_sees_the_own_traffic_only(tab: Visit, logged: None) -> None:
    sign_in(tab.page, OTHER)
    open_view(tab.page, "#/routing", "Routing")
    expect(tab.page.get_by_text("No decision is logged.").first).to_be_visible()
    expect(tab.page.get_by_role("heading", name="Judge")).to_have_count(0)
    expect(tab.page.get_by_label("Only tenant")).to_have_count(0)


def test_a_text_is_explained_as_the_command_line_does(tab: Visit) -> None:
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/routing", "Routing")
    page.get_by_label("First message of a conversation").fill(EXAM)
    page.get_by_label("Quality, 0 to 100", exact=True).fill("80")
    page.get_by_role("button", name="Explain").press("Enter")
    printed = CliRunner(env={"ROUNDHOUSE_MODELS_SERVE": ""}).invoke(
        main, ["route", "explain", "--json", "--quality", "80", EXAM]
    )
    choice = json.loads(printed.output)
    expect(page.get_by_text(f"It would go to the {choice['tier']} tier.")).to_be_visible()
    page.get_by_text("As JSON").press("Enter")
    assert json.loads(page.locator("main pre").inner_text()) == choice
    expect(page.get_by_role("region", name="Tiers").get_by_role("row").filter(has_text="chosen")).to_contain_text(
        choice["tier"]
    )
