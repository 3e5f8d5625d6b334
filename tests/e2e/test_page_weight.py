"""How much the chat page asks for, and when."""

from __future__ import annotations

from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import needs_chromium, visit
from tests.e2e.scripted import ScriptedServer

pytestmark = needs_chromium

LOADED = """["navigation", "resource"].flatMap((type) => performance.getEntriesByType(type))
  .map(({ name, transferSize }) => [new URL(name).pathname, transferSize])"""

CATALOGUES = {f"/languages/de/{name}.js" for name in ("chat", "answers")}


def loaded(page: Page) -> dict[str, int]:
    """Bytes by path of what the page came to, headers included; 0: the browser had it."""
    page.goto("/")
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    expect(page.locator("#model option", has_text="pirate")).to_have_count(1)
    found: list[tuple[str, int]] = page.evaluate(LOADED)
    assert len(dict(found)) == len(found), "something was asked for twice"
    return dict(found)


def test_the_first_visit_is_small_and_the_second_asks_for_what_may_change(
    browser: Browser, server: ScriptedServer
) -> None:
    """45 requests and 150 KB, with the icon and the WebSocket, which the browser does not list. All files are named by
    the page itself, so that none of them is found late."""
    with visit(browser, server.url, first=True) as tab:
        first = loaded(tab.page)
        assert len(first) + 2 <= 45, sorted(first)
        assert sum(first.values()) <= 150_000
        html = tab.context.request.get("/").text()
        assert not {path for path in first if path.startswith("/static/") and path[1:] not in html}
        again = loaded(tab.context.new_page())
        assert {path for path, size in again.items() if size} == {"/", "/ui/config.json", "/v1/models", "/v1/tickets"}


def test_another_language_costs_two_requests(browser: Browser, server: ScriptedServer) -> None:
    """Its catalogues, of 18 KB at most, which an English page does not ask for; with them it is 150 KB at most, too."""
    found = []
    for locale in ("en-US", "de-DE"):
        with visit(browser, server.url, first=True, locale=locale) as tab:
            found.append(loaded(tab.page))
    english, german = found
    more = german.keys() - english.keys()
    assert {path[path.index("/languages/") :] for path in more} == CATALOGUES
    assert sum(german[path] for path in more) <= 18_000
    assert sum(german.values()) <= 150_000
