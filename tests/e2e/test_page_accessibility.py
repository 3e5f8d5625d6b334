"""What assistive technology meets on the chat page: axe in all its states, and where the focus is after each action."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from gateway.errors import EngineFailed
from router.options import TierOption
from tests.e2e.browser import needs_chromium, violations, visit
from tests.e2e.page import LONG, answered, ask, connected, message
from tests.e2e.scripted import Answer, ScriptedServer
from tests.e2e.test_page_attachments import chips, drop

pytestmark = needs_chromium

EVERYTHING = """# A heading

Text with *emphasis*, `code`, a [link](https://example.com) and $e^{i\\pi}$.

1. one
2. two
   > quoted

| a | b |
|---|--:|
| c | 1 |

```python
def f(x: int) -> str:  # a comment
    return "text" + str(x * 2)
```
"""
OPTIONS = (
    TierOption("small", 0.31, 0.02, 0.0, 0.29, True),
    TierOption("medium", 0.4, 0.06, 0.35, -0.01, False, "is full"),
)


def script(server: ScriptedServer) -> None:
    server.pipeline.answers |= {
        "everything": Answer(text=EVERYTHING, cost=20, options=OPTIONS),
        "medium: everything": Answer(text=EVERYTHING, tier="medium"),
        "large: everything": Answer(text="short", tier="large"),
        "broken": Answer(text="half", failure=EngineFailed("it is gone")),
        "held": Answer(text=LONG, hold_at=40),
    }


def press(page: Page, name: str, *, exact: bool = True) -> None:
    """The last button of this name, by keyboard."""
    page.get_by_role("button", name=name, exact=exact).last.press("Enter")


@pytest.mark.parametrize(("scheme", "width"), [pytest.param("light", 1280, marks=pytest.mark.deep), ("dark", 390)])
def test_axe_finds_nothing(
    browser: Browser, server: ScriptedServer, scheme: Literal["light", "dark"], width: int
) -> None:
    """In the conversation, in what opens in it or over it, in the list beside it."""
    script(server)
    with visit(browser, server.url, color_scheme=scheme, viewport={"width": width, "height": 900}) as tab:
        page = tab.page

        def clean(state: str) -> None:
            assert violations(page) == [], state

        page.goto("/")
        connected(page)
        clean("empty")
        ask(page, "everything")
        answered(page)
        expect(page.locator("math")).to_have_count(1)
        page.locator("details.route summary").click()
        press(page, "Bad answer")
        expect(page.get_by_role("group", name="What is wrong with it?")).to_be_visible()
        clean("answer with its card")
        press(page, "Edit")
        clean("question that is changed")
        press(page, "Cancel")
        press(page, "Compare")
        expect(page.locator(".compare-form")).to_be_visible()
        clean("whom else to ask")
        press(page, "Ask")
        expect(page.get_by_role("button", name="Prefer this").first).to_be_visible()
        clean("comparison")
        press(page, "Close")
        drop(page, a_txt=b"alpha", b_png=b"\0")
        expect(chips(page)).to_have_count(1)
        clean("attached file and a refused one")
        ask(page, "broken")
        answered(page)
        clean("failure, and a second turn")
        for name in ("Settings", "Prompts"):
            press(page, name)
            expect(page.get_by_role("dialog")).to_be_visible()
            clean(name)
            if name == "Prompts":
                press(page, "New prompt")
                clean("new prompt")
                page.keyboard.press("Escape")
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_have_count(0)
        message(page).fill("")
        if width == 390:
            press(page, "Conversations")
        _beside_conversations(page, clean)


def _beside_conversations(page: Page, clean: Callable[[str], None]) -> None:
    """In the list and in the dialogs that are opened from it or by keys."""
    clean("list")
    press(page, "Rename: everything")
    clean("title that is changed")
    page.keyboard.press("Escape")
    press(page, "Delete: everything")
    clean("deleted")
    press(page, "Connected", exact=False)
    clean("key")
    page.keyboard.press("Escape")
    page.keyboard.press("ControlOrMeta+k")
    expect(page.get_by_role("dialog", name="Find").get_by_role("button").last).to_be_visible()
    clean("what can be found")
    press(page, "Keyboard shortcuts")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    clean("list of keys")


SCREENS: dict[str, dict[str, Any]] = {
    "wide": {"viewport": {"width": 1280, "height": 900}},
    "touch": {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True},
}


@pytest.fixture(params=SCREENS)
def reader(browser: Browser, server: ScriptedServer, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page that has been asked twice, by keys alone."""
    script(server)
    with visit(browser, server.url, **SCREENS[request.param]) as tab:
        tab.page.goto("/")
        connected(tab.page)
        press(tab.page, "Tell me a joke.")
        answered(tab.page)
        has_focus(tab.page)
        send(tab.page, "everything")
        answered(tab.page)
        has_focus(tab.page)
        yield tab.page


def has_focus(page: Page) -> None:
    """Something on the page has the focus, that is not the page itself."""
    expect(page.locator(":focus")).to_have_count(1)


def act(page: Page, *names: str) -> None:
    """Press one button after the other."""
    for name in names:
        press(page, name)
        has_focus(page)


def send(page: Page, question: str) -> None:
    message(page).fill(question)
    press(page, "Send")


def compare(page: Page) -> None:
    act(page, "Compare")
    expect(page.locator(".compare-form")).to_be_visible()


def test_the_focus_stays_with_an_answer(reader: Page) -> None:
    """Whatever is done about it."""
    press(reader, "Retry")
    expect(reader.get_by_text("2/2")).to_be_visible()
    answered(reader)
    has_focus(reader)
    act(reader, "Earlier version", "Later version", "Copy", "Good answer", "Bad answer", "Wrong", "Edit", "Cancel")
    compare(reader)
    act(reader, "Cancel")
    for leave in ("Close", "Prefer this"):
        compare(reader)
        act(reader, "Ask")
        expect(reader.get_by_role("button", name="Prefer this").first).to_be_visible()
        has_focus(reader)
        act(reader, leave)
    act(reader, "Continue in a conversation of its own")


def test_the_focus_comes_back_from_dialogs_and_from_stopping(reader: Page) -> None:
    for name in ("Settings", "Prompts"):
        act(reader, name)
        expect(reader.get_by_role("dialog")).to_be_visible()
        reader.keyboard.press("Escape")
        expect(reader.get_by_role("dialog")).to_have_count(0)
        has_focus(reader)
    send(reader, "held")
    act(reader, "Stop")
    answered(reader)
    has_focus(reader)
    act(reader, "New chat", "Temporary chat")
    reader.get_by_role("button", name=re.compile("Switch to")).press("Enter")
    has_focus(reader)


def test_the_focus_stays_in_the_list_of_conversations(reader: Page) -> None:
    """Where the list lies over the conversation, it comes back to what opens it."""

    def shown() -> None:
        if reader.get_by_role("navigation", name="Conversations").count() == 0:
            act(reader, "Conversations")

    shown()
    press(reader, "Pin: Tell me a joke.")
    expect(reader.get_by_role("button", name="Unpin: Tell me a joke.")).to_be_focused()
    act(reader, "Rename: Tell me a joke.")
    reader.keyboard.type("renamed")
    reader.keyboard.press("Enter")
    expect(reader.get_by_role("link", name="renamed")).to_be_focused()
    reader.keyboard.press("Enter")
    has_focus(reader)
    shown()
    act(reader, "Delete: renamed", "Undo")
    expect(reader.get_by_role("article").first).to_be_visible()
    has_focus(reader)
