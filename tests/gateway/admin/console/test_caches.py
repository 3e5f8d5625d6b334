"""Caches in the console: what they find, and how stored answers are taken back."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx2
import pytest
import redis
from playwright.sync_api import expect

from cache.semantic.keys import answer_key
from tests.e2e import keyboard
from tests.e2e.browser import Visit, needs_chromium
from tests.gateway.admin.conftest import ACME, CHAT, OPERATOR, Shop
from tests.gateway.admin.console.pages import dialog, open_view, press, row, sign_in, wait_until

pytestmark = needs_chromium


def asked(shop: Shop, tag: str, **more: Any) -> str:
    """What the cache made of acme's question with this tag."""
    choice = {"format": {"type": "choice", "choices": ["yes"]}}
    body = {"model": "small", "input": "hello", "max_output_tokens": 400, "text": choice, **more}
    headers = {"authorization": f"Bearer {CHAT}", "x-roundhouse-cache-tags": tag}
    response = httpx2.post(f"{shop.url}/v1/responses", json=body, headers=headers, timeout=30)
    return str(response.raise_for_status().headers["x-roundhouse-cache"])


def found(shop: Shop, tag: str) -> bool:
    return asked(shop, tag) == "hit"


@pytest.fixture
def stored(shop: Shop) -> None:
    """An answer of acme's with the tag `faq`, and one with `prices`."""
    for tag in ("faq", "prices"):
        wait_until(partial(found, shop, tag))


def test_invalidating_a_tag_turns_the_next_hit_into_a_miss(tab: Visit, shop: Shop, stored: None) -> None:
    """Answers with other tags stay."""
    page = tab.page
    sign_in(page, ACME)
    open_view(page, "#/caches", "Caches")
    expect(row(page, "faq")).to_be_visible()
    keyboard.press(page.get_by_role("button", name="Invalidate"))
    keyboard.write(dialog(page).get_by_label("Tag"), "faq")
    expect(dialog(page).locator("pre")).to_contain_text("/tenants/acme/cache/invalidate?tag=faq")
    press(page, "Invalidate")
    expect(dialog(page)).to_have_count(0)
    keyboard.kept(page)
    assert (asked(shop, "faq"), asked(shop, "prices")) == ("miss", "hit")


def test_invalidating_everything_asks_for_the_name(tab: Visit, shop: Shop, stored: None) -> None:
    page = tab.page
    sign_in(page, ACME)
    open_view(page, "#/caches", "Caches")
    keyboard.press(page.get_by_role("button", name="Invalidate"))
    expect(dialog(page).get_by_role("button", name="Invalidate")).to_be_disabled()
    keyboard.write(dialog(page).get_by_label("Type acme to confirm"), "acme")
    press(page, "Invalidate")
    expect(dialog(page)).to_have_count(0)
    assert (asked(shop, "faq"), asked(shop, "prices")) == ("miss", "miss")


def test_one_answer_is_deleted_another_revoked(
    tab: Visit, shop: Shop, stored: None, operator: httpx2.Client, redis_url: str
) -> None:
    """What the semantic cache does not know cannot be revoked."""
    page = tab.page
    digests = {each["tags"][0]: each["digest"] for each in operator.get("/tenants/acme/cache/answers").json()["data"]}
    with redis.Redis.from_url(redis_url) as client:
        client.hset(answer_key("acme", digests["prices"]), "state", "verified")
        sign_in(page, OPERATOR)
        open_view(page, "#/caches?tenant=acme", "Caches")
        expect(row(page, "faq").get_by_role("button")).to_have_count(1)
        keyboard.press(row(page, "prices").get_by_role("button", name="Revoke"))
        press(page, "Revoke")
        expect(row(page, "prices")).to_contain_text("revoked")
        assert client.hget(answer_key("acme", digests["prices"]), "state") == b"revoked"
    keyboard.press(row(page, "faq").get_by_role("button", name="Delete"))
    press(page, "Delete")
    expect(row(page, "faq")).to_have_count(0)
    keyboard.kept(page)
    assert (asked(shop, "faq"), asked(shop, "prices")) == ("miss", "hit")


def test_rates_and_reasons_lead_from_all_tenants_to_one(
    tab: Visit, shop: Shop, stored: None, operator: httpx2.Client
) -> None:
    """The measured error is shown of one tenant only."""
    page = tab.page
    assert asked(shop, "faq", temperature=1) == "bypass"

    def counted() -> bool:
        sums = [each["counters"] for each in operator.get("/cache").json()["data"]]
        return any("exact_bypass.random" in each and each.get("exact_hit", 0) >= 2 for each in sums)

    wait_until(counted)
    sign_in(page, OPERATOR)
    open_view(page, "#/caches", "Caches")
    expect(row(page, "Not looked up")).to_contain_text("random")
    expect(page.get_by_role("img", name="Requests that were looked up")).to_be_visible()
    expect(page.get_by_role("heading", name="Answers to similar questions")).to_have_count(0)
    keyboard.press(row(page, "acme").get_by_role("link"))
    expect(page.get_by_label("Only tenant")).to_have_value("acme")
    expect(page.get_by_role("heading", name="Answers to similar questions")).to_be_visible()
    expect(page.get_by_text("At most 2% may be wrong.")).to_be_visible()
    expect(row(page, "more in a row are right")).not_to_have_count(0)
    expect(row(page, "faq")).to_be_visible()
