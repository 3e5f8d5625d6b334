"""The live view: one stream, and none while nobody looks."""

from __future__ import annotations

from playwright.sync_api import Request, expect

from tests.e2e.browser import Visit, needs_chromium
from tests.gateway.admin.conftest import OPERATOR
from tests.gateway.admin.console.pages import open_view, row, sign_in

pytestmark = needs_chromium

HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_there_is_one_stream_and_none_while_the_tab_is_hidden(tab: Visit) -> None:
    """Nor after another view was opened."""
    page = tab.page
    begun: list[Request] = []
    ended: list[Request] = []

    def is_stream(request: Request) -> bool:
        return request.url.endswith("/admin/v1/live")

    page.on("request", lambda request: begun.append(request) if is_stream(request) else None)
    page.on("requestfailed", lambda request: ended.append(request) if is_stream(request) else None)
    sign_in(page, OPERATOR)
    open_view(page, "#/live", "Live")
    expect(row(page, "tiny-small")).to_contain_text("up")
    assert (len(begun), len(ended)) == (1, 0)
    with page.expect_event("requestfailed", is_stream):
        page.evaluate(HIDE, True)
    assert len(begun) == 1
    with page.expect_event("request", is_stream):
        page.evaluate(HIDE, False)
    expect(row(page, "tiny-small")).to_contain_text("up")
    with page.expect_event("requestfailed", is_stream):
        open_view(page, "#/audit", "Audit")
    assert (len(begun), len(ended)) == (2, 2)
