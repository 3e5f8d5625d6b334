"""Turns in the console: everything about an answer but its text."""

from __future__ import annotations

import httpx2
from playwright.sync_api import Response, expect

from tests.e2e.browser import Visit, needs_chromium
from tests.gateway.admin.conftest import ACME, CHAT, Shop
from tests.gateway.admin.console.pages import open_view, row, sign_in, wait_until

pytestmark = needs_chromium

SECRET = "xylophone-7731"


def test_a_turn_shows_decision_cost_and_feedback_and_no_text(tab: Visit, shop: Shop) -> None:
    """What was asked is in no answer that the console gets."""
    page = tab.page
    received: list[Response] = []
    page.on("response", lambda response: received.append(response) if "/admin/v1/" in response.url else None)
    with httpx2.Client(base_url=shop.url, headers={"authorization": f"Bearer {CHAT}"}, timeout=30) as chat:
        asked = {"model": "auto", "input": f"Say {SECRET}.", "max_output_tokens": 4}
        answered = chat.post("/v1/responses", json=asked).raise_for_status()
        while "x-roundhouse-cost-microdollars" not in answered.headers:  # the price was made a moment ago
            answered = chat.post("/v1/responses", json=asked).raise_for_status()
        turn = answered.json()["id"]
        chat.post(f"/v1/responses/{turn}/feedback", json={"rating": "up"}).raise_for_status()
    with httpx2.Client(base_url=f"{shop.url}/admin/v1", headers={"authorization": f"Bearer {ACME}"}) as admin:
        wait_until(lambda: bool(admin.get(f"/turns/{turn}").json().get("feedback")))
    sign_in(page, ACME, "#/turns")
    row(page, "tiny-small").first.get_by_role("link").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Turn")
    expect(page.get_by_text(turn)).to_be_visible()
    expect(page.locator("dl")).to_contain_text("$0.000001")
    expect(row(page, "up")).to_be_visible()
    expect(page.get_by_role("heading", name="Decision")).to_be_visible()
    open_view(page, "#/audit", "Audit")
    assert len(received) >= 3
    assert all(SECRET not in response.text() for response in received)


def test_comments_are_listed_and_lead_to_their_turns(tab: Visit, shop: Shop) -> None:
    """What a user wrote is text, whatever it looks like."""
    page, text = tab.page, "It was <b>1969</b>."
    with httpx2.Client(base_url=shop.url, headers={"authorization": f"Bearer {CHAT}"}, timeout=30) as chat:
        asked = {"model": "small", "input": "When?", "max_output_tokens": 4}
        turn = chat.post("/v1/responses", json=asked).raise_for_status().json()["id"]
        rating = {"rating": "down", "reason": "wrong", "comment": text}
        chat.post(f"/v1/responses/{turn}/feedback", json=rating).raise_for_status()
    with httpx2.Client(base_url=f"{shop.url}/admin/v1", headers={"authorization": f"Bearer {ACME}"}) as admin:
        wait_until(lambda: admin.get(f"/turns/{turn}").is_success)
    sign_in(page, ACME, "#/comments")
    expect(row(page, text)).to_contain_text("wrong")
    row(page, text).get_by_role("link").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Turn")
    expect(page.get_by_text(turn)).to_be_visible()
    expect(page.get_by_text(text)).to_be_visible()


def test_filters_stand_in_the_address(tab: Visit, shop: Shop) -> None:
    """So that a list can be sent to somebody, and the browser goes back to it."""
    page = tab.page
    sign_in(page, ACME, "#/turns")
    page.get_by_label("Outcome").select_option("failed")
    page.get_by_role("button", name="Show").press("Enter")
    expect(page.get_by_text("No turns.")).to_be_visible()
    assert page.url.endswith("#/turns?outcome=failed")
    page.get_by_label("Outcome").select_option("")
    page.get_by_role("button", name="Show").press("Enter")
    page.go_back()
    expect(page.get_by_label("Outcome")).to_have_value("failed")
