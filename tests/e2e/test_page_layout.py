"""The chat page on any screen, and in browsers that refuse something."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browser import Visit, needs_chromium, visit
from tests.e2e.page import answer, answered, ask, connected
from tests.e2e.scripted import Answer, ScriptedServer

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


@pytest.mark.parametrize("width", [320, 1280])
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


LINES = """elements => {
  const tops = elements.map((element) => element.getBoundingClientRect()).map(({ top, height }) => top + height / 2);
  return new Set(tops.map(Math.round)).size;
}"""
"""How many lines elements stand in."""
WIDTH = "element => element.getBoundingClientRect().width"


@pytest.mark.parametrize("locale", ["en-US", "de-DE"])
def test_what_can_be_done_with_an_answer_stands_in_one_line(
    browser: Browser, server: ScriptedServer, locale: str
) -> None:
    """On a narrow screen, too, with several versions of it; what was copied is still said there."""
    retry, copied = {"en-US": ("Retry", "Copied"), "de-DE": ("Wiederholen", "Kopiert")}[locale]
    options = {"locale": locale, "viewport": {"width": 390, "height": 800}, "permissions": ["clipboard-write"]}
    with visit(browser, server.url, **options) as tab:
        tab.page.goto("/")
        tab.page.locator("#message").fill("hello")
        tab.page.locator("#message").press("Enter")
        tab.page.get_by_role("button", name=retry).click()
        expect(tab.page.locator(".versions > span")).to_have_text("2/2")
        answered(tab.page)
        assert tab.page.locator(".turn-actions > *").evaluate_all(LINES) == 1
        copy = tab.page.locator("[data-action=copy-answer]")
        label = copy.locator("span")
        assert label.evaluate(WIDTH) <= 1
        # What it says stays, however long this test takes to look.
        tab.page.evaluate("() => ((set) => (setTimeout = (what, ms) => (ms === 1500 ? 0 : set(what, ms))))(setTimeout)")
        copy.click()
        expect(label).to_have_text(copied)
        assert label.evaluate(WIDTH) > 20


def test_an_empty_page_is_read_from_its_beginning(browser: Browser, server: ScriptedServer) -> None:
    """However small the screen is, or becomes; a way to the end is for answers only."""
    with visit(browser, server.url, viewport={"width": 1280, "height": 800}) as tab:
        tab.page.goto("/")
        connected(tab.page)
        tab.page.set_viewport_size({"width": 320, "height": 480})
        logo = tab.page.locator("#welcome .logo")
        expect(logo).to_be_in_viewport(ratio=1)
        scroller = tab.page.locator("#scroller")
        assert scroller.evaluate("scroller => scroller.scrollHeight > scroller.clientHeight + 200")
        scroller.evaluate("scroller => scroller.scrollTo(0, scroller.scrollHeight)")
        expect(logo).not_to_be_in_viewport()
        scroller.evaluate("scroller => scroller.scrollTo(0, 0)")
        expect(logo).to_be_in_viewport(ratio=1)
        expect(tab.page.locator("#jump")).to_be_hidden()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_foot_of_the_list_has_one_line_of_buttons(browser: Browser, server: ScriptedServer, width: int) -> None:
    with visit(browser, server.url, viewport={"width": width, "height": 800}) as tab:
        tab.page.goto("/")
        ask(tab.page, "hello")
        answered(tab.page)
        if width < 1024:
            tab.page.get_by_role("button", name="Conversations", exact=True).click()
        expect(tab.page.get_by_role("button", name="Share", exact=True)).to_be_visible()
        assert tab.page.locator(".sidebar-foot .quiet").evaluate_all(LINES) == 1


def test_icons_are_there_without_a_network(tab: Visit, server: ScriptedServer) -> None:
    """Also those that appear after it was lost."""
    ask(tab.page, "hello")
    answered(tab.page)
    failed: list[str] = []
    tab.page.on("requestfailed", lambda request: failed.append(request.url))
    tab.context.set_offline(True)
    tab.page.evaluate("document.querySelector('#log').append(document.querySelector('.turn').cloneNode(true))")
    areas = tab.page.locator("svg:visible use").evaluate_all(
        "uses => uses.map(use => use.getBBox()).map(box => box.width * box.height)"
    )
    assert areas and all(area > 0 for area in areas)
    assert [url for url in failed if "/static/" in url] == []


def test_without_storage_the_page_answers_and_says_that_it_keeps_nothing(
    browser: Browser, server: ScriptedServer
) -> None:
    refused = (
        "for (const name of ['localStorage', 'sessionStorage', 'indexedDB'])"
        " Object.defineProperty(window, name, { get() { throw new DOMException('refused', 'SecurityError'); } });"
    )
    with visit(browser, server.url) as tab, tab.page.add_init_script(refused):
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
