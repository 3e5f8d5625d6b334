"""The chat page on any screen, and in browsers that refuse something."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browser import Answer, ScriptedServer, Visit, needs_chromium, visit
from tests.e2e.page import answer, answered, ask

pytestmark = needs_chromium


def test_a_long_question_is_folded(tab: Visit) -> None:
    """Twelve lines of it are shown until its reader wants all."""
    lines = "\n".join(f"line {number}" for number in range(200))
    ask(tab.page, lines)
    answered(tab.page)
    shown = tab.page.locator(".question p")
    folded = shown.bounding_box()
    tab.page.get_by_role("button", name="Show all").click()
    unfolded = shown.bounding_box()
    assert folded is not None and unfolded is not None
    assert folded["height"] * 10 < unfolded["height"]
    tab.page.get_by_role("button", name="Show less").click()
    assert shown.bounding_box() == folded


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_screen(browser: Browser, server: ScriptedServer, width: int) -> None:
    """A table's words stay whole, and it scrolls by itself."""
    cells = "| left | right | sixth |\n|---|---|---|\n| " + " | ".join(["unbreakable" * 3] * 3) + " |\n"
    server.pipeline.answers["wide"] = Answer(text=f"{cells}\n`{'x' * 400}`\n\n$${'x+' * 200}x$$\n")
    with visit(browser, server.url, viewport={"width": width, "height": 700}) as tab:
        tab.page.goto("/")
        tab.page.evaluate("document.fonts.ready")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        ask(tab.page, "wide")
        answered(tab.page)
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.page.evaluate("document.querySelector('#scroller').scrollWidth") <= width
        for name in ("Send", "Switch to dark"):
            box = tab.page.get_by_role("button", name=name).bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width, name
        lines = "element => element.getBoundingClientRect().height / parseFloat(getComputedStyle(element).lineHeight)"
        assert answer(tab.page).locator("th").first.evaluate(lines) < 2


def test_icons_are_there_without_a_network(tab: Visit, server: ScriptedServer) -> None:
    """Also those that appear after it was lost."""
    ask(tab.page, "hello")
    answered(tab.page)
    tab.context.set_offline(True)
    tab.page.evaluate("document.querySelector('#log').append(document.querySelector('.turn').cloneNode(true))")
    areas = tab.page.locator("svg:visible use").evaluate_all(
        "uses => uses.map(use => use.getBBox()).map(box => box.width * box.height)"
    )
    assert areas and all(area > 0 for area in areas)


def test_without_storage_the_page_answers_and_says_that_it_keeps_nothing(
    browser: Browser, server: ScriptedServer
) -> None:
    with visit(browser, server.url) as tab:
        tab.page.add_init_script(
            "for (const name of ['localStorage', 'sessionStorage', 'indexedDB'])"
            " Object.defineProperty(window, name, { get() { throw new DOMException('refused', 'SecurityError'); } });"
        )
        tab.page.goto("/")
        ask(tab.page, "hello")
        answered(tab.page)
        expect(tab.page.get_by_text("keep nothing")).to_be_visible()


def test_the_theme_follows_the_system_until_the_user_chooses(browser: Browser, server: ScriptedServer) -> None:
    """The choice outlives a reload."""
    with visit(browser, server.url, color_scheme="dark") as tab:
        tab.page.goto("/")
        scheme = "getComputedStyle(document.documentElement).colorScheme"
        tab.page.get_by_role("button", name="Switch to light").click()
        assert tab.page.evaluate(scheme) == "light"
        tab.page.reload()
        assert tab.page.evaluate(scheme) == "light"
        tab.page.get_by_role("button", name="Switch to dark").click()
        assert tab.page.evaluate("document.documentElement.dataset.theme ?? null") is None
