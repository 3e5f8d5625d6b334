"""Much of everything on the chat page: a conversation of a thousand turns, and a thousand conversations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.browser import Visit, needs_chromium
from tests.e2e.keyboard import focus, press
from tests.e2e.page import answered, ask, connected, message
from tests.e2e.test_page_history import listed

pytestmark = needs_chromium

TURNS = 1000
ANSWER = "Answer {} with **bold** text.\n\n- one\n- two\n\n```python\nx = {}\n```\n"
DRAWN = ".turn:has(.turn-foot)"
"""Turns that are more than their text."""


def kept_turn(number: int, question: str, text: str, parent: str | None = None) -> dict[str, Any]:
    """A turn as exports have it."""
    nothing = dict.fromkeys(("responseId", "route", "usage", "failure", "rating"))
    said = {"question": question, "text": text, "model": "auto", "status": "completed"}
    return {"id": f"t{number}", "parent": parent, "continuable": False, "sequence": 1, **said, **nothing}


def bring(page: Page, conversations: Sequence[dict[str, Any]]) -> None:
    """Import them."""
    exported = {"format": "roundhouse.conversations", "version": 1, "conversations": conversations}
    file = {"name": "many.json", "mimeType": "application/json", "buffer": json.dumps(exported).encode()}
    page.get_by_label("Import").set_input_files(file)
    expect(page.locator("#told")).to_contain_text("imported")


@pytest.fixture
def long(tab: Visit) -> Page:
    """A page with a conversation of a thousand turns."""
    turns = [
        kept_turn(number, f"Question {number}?", ANSWER.format(number, number), f"t{number - 1}" if number else None)
        for number in range(TURNS)
    ]
    bring(tab.page, [{"id": "long", "title": "Long", "updated": 1, "turns": turns, "leaf": turns[-1]["id"]}])
    tab.page.goto("/#/c/long")
    tab.page.reload()
    connected(tab.page)
    expect(tab.page.locator(".turn")).to_have_count(TURNS)
    return tab.page


def few(page: Page) -> None:
    """Not much more is drawn than is seen."""
    assert 0 < page.locator(DRAWN).count() <= 60
    assert page.evaluate("document.querySelectorAll('*').length") <= 12_000


def turn(page: Page, number: int) -> Locator:
    return page.locator(".turn").nth(number)


def test_of_a_long_conversation_little_is_drawn(long: Page) -> None:
    """What comes near is drawn, and what is far again is not; its text is there all the time."""
    few(long)
    for number in (0, 400, 401, 500, TURNS - 1):
        expect(turn(long, number)).to_contain_text(f"Answer {number} with")
        turn(long, number).scroll_into_view_if_needed()
        expect(turn(long, number).locator("strong")).to_have_text("bold")
        expect(turn(long, number).get_by_role("button", name="Edit")).to_have_count(1)
        few(long)
    expect(turn(long, 0).locator("strong")).to_have_count(0)
    ask(long, "one more")
    answered(long)
    expect(turn(long, TURNS).locator(".markdown")).to_have_text("A short answer.")
    few(long)


def test_who_is_at_work_far_away_is_left_alone(long: Page) -> None:
    """A question that is being changed is there when one comes back to it."""
    turn(long, 300).scroll_into_view_if_needed()
    turn(long, 300).get_by_role("button", name="Edit").press("Enter")
    turn(long, 300).get_by_role("textbox", name="Question").fill("Another question?")
    message(long).focus()
    turn(long, 900).scroll_into_view_if_needed()
    expect(turn(long, 900).locator("strong")).to_have_text("bold")
    turn(long, 300).scroll_into_view_if_needed()
    turn(long, 300).get_by_role("textbox", name="Question").press("Enter")
    answered(long)
    expect(long.locator(".turn")).to_have_count(301)
    versions = turn(long, 300).locator(".versions > span")
    expect(versions).to_have_text("2/2")
    turn(long, 300).get_by_role("button", name="Earlier version").press("Enter")
    expect(long.locator(".turn")).to_have_count(TURNS)
    expect(versions).to_have_text("1/2")
    expect(turn(long, 300).get_by_role("button", name="Later version")).to_be_focused()
    few(long)


def test_a_key_lays_the_page_out_twice_at_most(long: Page) -> None:
    devtools = long.context.new_cdp_session(long)
    devtools.send("Performance.enable")

    def layouts() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "LayoutCount"))

    message(long).focus()
    keys = "a few words that somebody types"
    before = layouts()
    for key in keys:
        long.keyboard.press(key if key != " " else "Space")
        long.evaluate("new Promise((seen) => requestAnimationFrame(() => requestAnimationFrame(seen)))")
    assert layouts() - before <= 2 * len(keys)
    expect(message(long)).to_have_value(keys)


def test_a_word_is_found_in_a_thousand_conversations(tab: Visit) -> None:
    """In a title and in a text, by keys alone."""
    page = tab.page
    chats = [
        {
            "id": f"c{number}",
            "title": "Quinces" if number == 300 else f"Title {number}",
            "updated": number,
            "turns": [kept_turn(number, f"Question {number}?", "They are medlars." if number == 700 else "An answer.")],
            "leaf": f"t{number}",
        }
        for number in range(1000)
    ]
    bring(page, chats)
    search = page.get_by_role("searchbox", name="Search conversations")
    for word, title, question in (("quinces", "Quinces", "Question 300?"), ("MEDLARS", "Title 700", "Question 700?")):
        focus(search)
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type(word)
        expect(listed(page)).to_have_text([title])
        press(listed(page))
        expect(page.locator(".question p")).to_have_text(question)
