"""The card under an answer of the chat page: what the router compared."""

from __future__ import annotations

import re

import msgspec
from playwright.sync_api import expect

from router.options import TierOption
from tests.e2e.browser import Visit, needs_chromium
from tests.e2e.page import answered, ask
from tests.e2e.scripted import Answer, ScriptedServer

pytestmark = needs_chromium


def test_the_card_has_a_row_for_each_tier(tab: Visit, server: ScriptedServer) -> None:
    """With what it came to; the chosen one is marked, and what could not be had says why. Of an answer from the cache
    they are those of the answer that is given again."""
    options = (
        TierOption("small", 0.31, 0.02, 0.0, 0.29, False, "is below the medium tier, which the conversation has used"),
        TierOption("medium", 0.4, 0.06, 0.35, -0.01, True),
        TierOption("large", 0.9, 0.2, 0.0, 0.7, False, "is full"),
    )
    server.pipeline.answers |= {
        "new": Answer(options=options),
        "again": Answer(options=options, cache="hit", cache_reason="stored", complexity=None, reasons=("as before",)),
        "cheap": Answer(options=tuple(msgspec.structs.replace(each, cost=1e9) for each in options)),
    }
    for question in ("new", "again"):
        ask(tab.page, question)
        answered(tab.page)
        card = tab.page.locator("details.route").last
        card.locator("summary").click()
        rows = card.locator("table.options tbody tr")
        expect(rows).to_have_text(
            [
                re.compile(r"small\s*is below the medium tier, .*used\s*0\.310\s*0\.020\s*0\.000\s*0\.290"),
                re.compile(r"medium\s*chosen\s*0\.400\s*0\.060\s*0\.350\s*-0\.010"),
                re.compile(r"large\s*is full\s*0\.900\s*0\.200\s*0\.000\s*0\.700"),
            ]
        )
        expect(card.locator("tr.chosen")).to_have_count(1)
        card.locator("summary").click()
    expect(card).to_contain_text("as before")
    card.locator("summary").click()
    tab.page.set_viewport_size({"width": 320, "height": 800})
    outer, inner = (card.bounding_box(), card.locator("table.options").bounding_box())
    assert outer is not None and inner is not None and inner["x"] + inner["width"] <= outer["x"] + outer["width"] <= 320
    assert tab.page.evaluate("document.querySelector('#scroller').scrollWidth") <= 320
    tab.page.set_viewport_size({"width": 1280, "height": 800})
    card.locator("summary").click()
    ask(tab.page, "cheap")
    answered(tab.page)
    card.locator("summary").click()
    expect(card).to_contain_text("cost alone counts")
    expect(card.locator("table.options thead th")).to_have_text(["Tier", "Value"])
