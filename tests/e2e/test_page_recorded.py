"""The chat page looks as it was recorded, box by box."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browser import needs_chromium, visit
from tests.e2e.layouts import HEIGHT, WIDTHS, Layouts, in_boxes
from tests.e2e.page import answered, ask, connected
from tests.e2e.scripted import Answer, ScriptedServer

pytestmark = needs_chromium

TEXT = """# A heading

Text with *emphasis*, `code` and a [link](https://example.com), long enough for several lines on a narrow screen.

1. one
2. two

| a | b |
|---|--:|
| c | 1 |

```python
def f(x: int) -> str:
    return "text" + str(x * 2)
```
"""
FRAME = {
    "bar": "header.bar",
    "new chat": "#new-chat",
    "composer": "#composer",
    "message": "#message",
    "model": "#model",
    "send": "#send",
}
ANSWERED = {
    "question": ".question p",
    "answer": ".markdown",
    "table": ".markdown table",
    "code": ".markdown .code",
    "card": "details.route",
}


@pytest.mark.parametrize("width", WIDTHS)
def test_the_chat_page_looks_as_recorded(whole_browser: Browser, server: ScriptedServer, width: int) -> None:
    """Empty, and with an answer."""
    layouts = Layouts(f"chat-{width}", whole_browser)
    server.pipeline.answers["show"] = Answer(text=TEXT)
    with visit(whole_browser, server.url, viewport={"width": width, "height": HEIGHT}, reduced_motion="reduce") as tab:
        in_boxes(tab.page)
        tab.page.goto("/")
        connected(tab.page)
        expect(tab.page.locator("#model option", has_text="pirate")).to_have_count(1)
        layouts.compare(tab.page, "empty", {**FRAME, "welcome": "#welcome", "examples": "#examples"})
        ask(tab.page, "show")
        answered(tab.page)
        # What was measured is never the same twice, and takes a second line where it took long.
        tab.page.locator("details.route .figure").evaluate_all("parts => parts.forEach(part => part.remove())")
        tab.page.locator("details.route, .turn time").evaluate_all(
            "parts => parts.forEach(part => part.style.visibility = 'hidden')"
        )
        tab.page.locator("#scroller").evaluate("scroller => scroller.scrollTo(0, scroller.scrollHeight)")
        expect(tab.page.locator("#jump")).to_be_hidden()
        expect(tab.page.locator(".code .hljs-keyword").first).to_be_visible()
        expect(tab.page.locator("#context-figures")).to_have_text(re.compile("of 1,000 tokens"))
        layouts.compare(tab.page, "answer", {**FRAME, **ANSWERED})
