"""Several models answer the same question side by side on the chat page."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect

from gateway.errors import Unavailable
from tests.e2e.browser import Visit, needs_chromium, violations, visit
from tests.e2e.page import LONG, answered, ask, connected, message, reload, watched
from tests.e2e.scripted import Answer, ScriptedServer
from tests.e2e.test_page_attachments import drop
from tests.e2e.test_page_settings import use

pytestmark = needs_chromium

ASKED = ("small", "large")


def script(server: ScriptedServer, **answer: Any) -> None:
    """Have medium answer `question` when nobody is named, and each tier in its own words when it is."""
    server.pipeline.answers |= {"question": Answer(text="words of medium", tier="medium", cost=20)}
    server.pipeline.answers |= {
        f"{tier}: question": Answer(**{"text": f"words of {tier}", "tier": tier, "cost": 3_000, **answer})
        for tier in ASKED
    }


def compare(page: Page, *names: str, blind: bool = False) -> Locator:
    """Put the last question to others; returns the lanes."""
    page.get_by_role("button", name="Compare").last.click()
    form = page.locator(".compare-form")
    expect(form).to_be_visible()  # what compares is loaded when it is wanted
    for box in form.get_by_role("checkbox").all():
        name = box.get_attribute("value")
        if name is not None:
            box.set_checked(name in names)
    form.get_by_label("Hide who has written what").set_checked(blind)
    form.get_by_role("button", name="Ask").click()
    return page.locator(".lane")


def test_others_answer_side_by_side_and_the_preferred_one_is_gone_on_from(tab: Visit, server: ScriptedServer) -> None:
    """All at once, each with its cost; one opinion with the ids of both sides; all answers stay."""
    script(server, hold_at=8)
    ask(tab.page, "before")
    answered(tab.page)
    ask(tab.page, "question")
    answered(tab.page)
    lanes = compare(tab.page, *ASKED)
    expect(lanes).to_have_count(3)
    for number, name in ((1, "small"), (2, "large")):
        expect(lanes.nth(number).get_by_role("heading")).to_have_text(f"scripted-{name} ({name})")
        expect(lanes.nth(number).locator(".markdown")).to_have_text("words of")
    expect(tab.page.get_by_role("button", name="Prefer this")).to_have_count(0)
    server.release()
    answered(tab.page)
    for number, name, cost in ((0, "medium", "$0.00002"), (1, "small", "$0.003"), (2, "large", "$0.003")):
        expect(lanes.nth(number).locator(".markdown")).to_have_text(f"words of {name}")
        for figure in ("First text", "Tokens", cost):
            expect(lanes.nth(number).locator(".figures")).to_contain_text(figure)
    lanes.nth(2).get_by_role("button", name="Prefer this").click()
    expect(tab.page.locator(".comparison")).to_have_count(0)
    expect(message(tab.page)).to_be_focused()
    expect(tab.page.locator(".markdown").last).to_have_text("words of large")
    expect(tab.page.locator(".note")).to_have_text("Preferred over scripted-medium (medium), scripted-small (small)")
    expect(tab.page.get_by_role("status").last).to_have_text("Preference noted")
    expect(tab.page.get_by_text("This conversation has cost $0.006.")).to_be_visible()

    first, asked, small, large = sorted(server.pipeline.turns, key=lambda turn: order(turn.request.model))
    assert [turn.request.previous_response_id for turn in (asked, small, large)] == [first.id] * 3
    noted = server.feedback()[-1]
    assert (noted["response"], noted["signal"], noted["tier"]) == (large.id, "preferred", "large")
    assert noted["over"] == [{"response": asked.id, "tier": "medium"}, {"response": small.id, "tier": "small"}]

    expect(tab.page.locator(".versions > span")).to_have_text(re.compile("/3$"))
    ask(tab.page, "next")
    answered(tab.page)
    assert server.pipeline.turns[-1].request.previous_response_id == large.id
    reload(tab.page)
    connected(tab.page)
    expect(tab.page.locator(".markdown").nth(1)).to_have_text("words of large")
    expect(tab.page.locator(".versions > span")).to_have_text(re.compile("/3$"))


def order(model: str) -> int:
    return ["auto", *ASKED].index(model)


def test_what_it_costs_is_told_first(tab: Visit, server: ScriptedServer) -> None:
    """By the prices of those who are asked and the length of the answer that is there; at most four are asked."""
    script(server)
    ask(tab.page, "question")
    answered(tab.page)
    tab.page.get_by_role("button", name="Compare").click()
    form = tab.page.locator(".compare-form")
    expect(form.get_by_role("button", name="Ask")).to_be_focused()
    told = form.get_by_role("status")
    # 30 tokens read for a dollar a million, 4 written for four.
    expect(told).to_have_text("About $0.000046, if the answers are as long as this one.")
    form.get_by_label("scripted-large").check()
    expect(told).to_have_text("About $0.000092, if the answers are as long as this one.")
    form.get_by_label("scripted-small").check()
    expect(form.get_by_label("pirate")).to_be_disabled()
    for name in ("large", "scripted-large"):
        form.get_by_label(name, exact=True).uncheck()
    expect(told).to_have_text("This costs nothing: none of them has a price.")
    for name in ("small", "scripted-small"):
        form.get_by_label(name, exact=True).uncheck()
    expect(told).to_have_text("Choose up to 4.")
    expect(form.get_by_role("button", name="Ask")).to_be_disabled()
    form.get_by_label("pirate").press("Escape")
    expect(form).to_have_count(0)
    expect(tab.page.get_by_role("button", name="Compare")).to_be_focused()
    assert len(server.pipeline.turns) == 1


def test_stop_ends_all_of_them(tab: Visit, server: ScriptedServer) -> None:
    """What is there of them stays; an answer that was stopped is no part of an opinion."""
    script(server, text=LONG, hold_at=100)
    ask(tab.page, "question")
    answered(tab.page)
    lanes = compare(tab.page, *ASKED)
    for number in (1, 2):
        expect(lanes.nth(number).locator(".markdown")).to_contain_text("word10")
    tab.page.get_by_role("button", name="Stop").click()
    answered(tab.page)
    assert [turn.cancelled for turn in server.pipeline.turns] == [False, True, True]
    for number in (1, 2):
        expect(lanes.nth(number).locator(".note")).to_have_text("Stopped")
        expect(lanes.nth(number).locator(".markdown")).to_have_text(LONG[:100])
    with tab.page.expect_request("**/feedback") as sent:
        lanes.nth(1).get_by_role("button", name="Prefer this").click()
    expect(tab.page.locator(".comparison")).to_have_count(0)
    assert sent.value.post_data_json == {"rating": "preferred", "over": [server.pipeline.turns[0].id]}


def test_blind_hides_names_until_one_is_preferred(tab: Visit, server: ScriptedServer) -> None:
    script(server)
    ask(tab.page, "question")
    answered(tab.page)
    lanes = compare(tab.page, *ASKED, blind=True)
    answered(tab.page)
    expect(lanes.get_by_role("heading")).to_have_text(["Answer A", "Answer B", "Answer C"])
    expect(tab.page.locator("#log :text('scripted-'):visible")).to_have_count(0)
    lanes.filter(has_text="words of small").get_by_role("button", name="Prefer this").click()
    expect(tab.page.locator(".note")).to_contain_text("scripted-large (large)")
    expect(tab.page.locator("details.route summary")).to_contain_text("scripted-small")


def test_a_model_that_answers_twice_is_told_apart(tab: Visit, server: ScriptedServer) -> None:
    """Asked as its tier and by its name: no two regions have the same name."""
    script(server)
    server.pipeline.answers["scripted-small: question"] = Answer(text="other words", tier="small")
    ask(tab.page, "question")
    answered(tab.page)
    lanes = compare(tab.page, "small", "scripted-small")
    answered(tab.page)
    names = ["scripted-medium (medium)", "scripted-small (small) · 1", "scripted-small (small) · 2"]
    expect(lanes.get_by_role("heading")).to_have_text(names)
    assert violations(tab.page) == []


def test_one_that_cannot_answer_says_so(tab: Visit, server: ScriptedServer) -> None:
    """The others can be preferred all the same; closing leaves the answer that was there."""
    script(server)
    server.pipeline.answers["large: question"] = Answer(refusal=Unavailable("no"))
    ask(tab.page, "question")
    answered(tab.page)
    lanes = compare(tab.page, *ASKED)
    answered(tab.page)
    expect(lanes.nth(2).locator(".note")).to_have_text("No model can answer at the moment.")
    expect(tab.page.get_by_role("button", name="Prefer this")).to_have_count(2)
    tab.page.get_by_role("button", name="Close").click()
    expect(tab.page.get_by_role("button", name="Compare")).to_be_focused()
    expect(tab.page.locator(".markdown")).to_have_text(["words of medium"])


def test_an_answer_cut_off_with_its_connection_goes_on_in_its_lane(tab: Visit, server: ScriptedServer) -> None:
    script(server, text=LONG, hold_at=100)
    ask(tab.page, "question")
    answered(tab.page)
    lanes = compare(tab.page, *ASKED)
    expect(lanes.nth(2).locator(".markdown")).to_contain_text("word10")
    tab.context.set_offline(True)
    expect(tab.page.locator("#connection")).to_have_text("Reconnecting")
    tab.context.set_offline(False)
    connected(tab.page)
    server.release()
    answered(tab.page)
    for number in (1, 2):
        expect(lanes.nth(number).locator(".markdown")).to_have_text(LONG)
    assert len(server.pipeline.turns) == 3


def test_others_are_sent_what_the_first_one_was_sent(browser: Browser, server: ScriptedServer) -> None:
    """Its settings and attachments, also where the conversation has others now."""
    with visit(browser, server.url) as tab:
        created = watched(tab)
        use(tab.page, Instructions="Be brief.")
        drop(tab.page, a_txt=b"alpha")
        ask(tab.page, "question")
        answered(tab.page)
        use(tab.page, Instructions="Be long.")
        compare(tab.page, "large", "pirate")
        answered(tab.page)
    first, *others = created
    assert first["instructions"] == "Be brief." and "alpha" in str(first["input"])
    assert others == [{**first, "model": name} for name in ("large", "pirate")]


def test_on_a_phone_they_are_behind_tabs(browser: Browser, server: ScriptedServer) -> None:
    """One at a time, reached by touch and by keys; nothing is wider than the screen. On a wide one they are columns."""
    script(server)
    with visit(browser, server.url, viewport={"width": 390, "height": 800}) as tab:
        tab.page.goto("/")
        connected(tab.page)
        ask(tab.page, "question")
        answered(tab.page)
        lanes = compare(tab.page, *ASKED)
        answered(tab.page)
        tabs = tab.page.get_by_role("tab")
        expect(tabs).to_have_text([f"scripted-{tier} ({tier})" for tier in ("medium", *ASKED)])
        for number, name in ((0, "medium"), (1, "small"), (2, "large")):
            tabs.nth(number).click()
            expect(tab.page.get_by_role("tabpanel")).to_contain_text(f"words of {name}")
        tab.page.keyboard.press("ArrowRight")
        expect(tabs.first).to_be_focused()
        expect(tab.page.get_by_role("tabpanel")).to_contain_text("words of medium")
        for width in (390, 320):
            tab.page.set_viewport_size({"width": width, "height": 800})
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.page.evaluate("document.querySelector('#scroller').scrollWidth") <= width
        tab.page.set_viewport_size({"width": 1280, "height": 800})
        expect(tab.page.get_by_role("tablist")).to_be_hidden()
        boxes = [box for lane in lanes.all() if (box := lane.bounding_box()) is not None]
        assert len(boxes) == 3 and len({box["y"] for box in boxes}) == 1 and min(box["width"] for box in boxes) > 250
