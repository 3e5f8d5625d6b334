"""Planning replicas in the console."""

from __future__ import annotations

import re

import msgspec
from playwright.sync_api import expect

from gateway.admin.endpoints.plan import PlanQuery
from tests.e2e.browser import Visit, needs_chromium
from tests.gateway.admin.conftest import OPERATOR
from tests.gateway.admin.console.pages import open_view, row, sign_in

pytestmark = needs_chromium

WORDS = {"model", "hardware", "weights", "kv"}
"""Fields of the form that are no numbers."""


def test_a_load_is_planned_by_a_form_that_stays(tab: Visit) -> None:
    """The plan's address can be sent to somebody; what cannot be planned is told beside what was asked."""
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/plan", "Plan")
    page.get_by_label("Model").fill("llama-3.1-8b")
    page.get_by_label("Hardware").fill("h100")
    page.get_by_label("Requests a second at the busiest time").fill("20")
    page.get_by_role("button", name="Show").press("Enter")
    expect(page.get_by_role("heading", name="replicas of llama-3.1-8b")).to_be_visible()
    expect(row(page, "per month").first).to_contain_text("730 hours")
    expect(page.get_by_role("region", name="Alternatives").get_by_role("row")).not_to_have_count(0)
    page.get_by_text("As a command").click()
    expect(page.get_by_text(re.compile("roundhouse plan --model llama-3.1-8b --hardware h100"))).to_be_visible()
    page.reload()
    expect(page.get_by_label("Hardware")).to_have_value("h100")
    page.get_by_label("Model").fill("llama-3.1-70b")
    page.get_by_label("Hardware").fill("l4")
    page.get_by_role("button", name="Show").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("needs")
    expect(page.get_by_label("Model")).to_have_value("llama-3.1-70b")


def test_the_form_takes_only_what_the_server_does(tab: Visit) -> None:
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/plan", "Plan")
    inputs = page.locator("form.filters input[type=number]")
    ranges: list[list[str]] = inputs.evaluate_all("(inputs) => inputs.map(({ min, max }) => [min, max])")
    numbers = [field.name for field in msgspec.structs.fields(PlanQuery) if field.name not in WORDS]
    for name, ends in zip(numbers, ranges, strict=True):
        assert all(ends), name
        for end in ends:
            msgspec.convert({name: end}, PlanQuery, strict=False)
