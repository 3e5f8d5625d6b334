"""Pictures of the chat page with the three models of the catalogue: an answer with its card, and answers side by side.

    make screens            writes docs/images/chat.webp and docs/images/chat-compare.webp

A whole `roundhouse serve`, which fetches the models that the machine does not have.
"""

from __future__ import annotations

from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import chromium, visit
from tests.e2e.conftest import Installation
from tests.e2e.layouts import WIDTHS
from tests.e2e.page import answered, ask, connected
from tests.e2e.pictures import DOCS, keep, seen

LAST = "qwen2.5-coder-1.5b"
"""The model that comes last."""
SIZE = {"width": WIDTHS[0], "height": 900}
FETCHING = 1_800_000
"""Milliseconds for which models may be fetched."""
BEFORE = ("Write a haiku about trains.", "Write a Python function that reverses a string.")
QUESTION = "What is the difference between TCP and UDP? One sentence, please."
COMPARED = "Which command shows the free disk space on Linux? Answer briefly."
TABLES = """
[[prices]]
name = "smollm2-135m"
input = 20000
output = 80000

[[prices]]
name = "qwen2.5-coder-0.5b"
input = 60000
output = 240000

[[prices]]
name = "qwen2.5-coder-1.5b"
input = 200000
output = 800000
"""


def converse(page: Page) -> None:
    """Some conversations, the last of which is shown with the card of its answer."""
    for question in (*BEFORE, QUESTION):
        page.get_by_role("button", name="New chat").click()
        ask(page, question)
        answered(page)
    card = page.locator("details.route")
    card.locator("summary").click()
    expect(card).to_have_attribute("open", "")
    keep(seen(page), DOCS / "images" / "chat.webp", quality=80)
    card.locator("summary").click()


def compare(page: Page) -> None:
    """What the other tiers would have said."""
    page.get_by_role("button", name="New chat").click()
    ask(page, COMPARED)
    answered(page)
    page.get_by_role("button", name="Compare").click()
    page.locator(".compare-form").get_by_role("button", name="Ask").click()
    expect(page.get_by_role("button", name="Prefer this")).to_have_count(3)
    page.locator(".lanes").evaluate("lanes => lanes.scrollIntoView()")
    keep(seen(page), DOCS / "images" / "chat-compare.webp", quality=80)


def visited(browser: Browser, running: Installation) -> None:
    with visit(browser, running.url, viewport=SIZE) as tab:
        tab.page.emulate_media(color_scheme="light", reduced_motion="reduce")
        tab.page.goto("/")
        connected(tab.page)
        expect(tab.page.locator("#model option", has_text=LAST)).to_have_count(1, timeout=FETCHING)
        converse(tab.page)
        compare(tab.page)


def main() -> None:
    running = Installation(tiers=(), tables=TABLES, ROUNDHOUSE_MODELS_SERVE="small,medium,large")
    try:
        running.wait_ready()
        with chromium() as browser:
            visited(browser, running)
    finally:
        running.close()


if __name__ == "__main__":
    main()
