"""Every view on any screen: what it asks for, whom it shuts out, where the focus is."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import httpx2
import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.e2e.browser import Visit, needs_chromium, violations, visit
from tests.gateway.admin.conftest import CHAT, OPERATOR, Shop
from tests.gateway.admin.console.pages import (
    OPERATORS_VIEWS,
    PENDING,
    admins_views,
    loaded,
    open_view,
    row,
    sign_in,
    wait_until,
)

pytestmark = needs_chromium


@pytest.fixture
def answered(shop: Shop) -> str:
    """A turn of acme's -> its id."""
    body = {"model": "small", "input": "hello", "max_output_tokens": 4}
    headers = {"authorization": f"Bearer {CHAT}"}
    response = httpx2.post(f"{shop.url}/v1/responses", json=body, headers=headers, timeout=30)
    return str(response.raise_for_status().json()["id"])


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), pytest.param("dark", 390, marks=pytest.mark.deep)])
def test_axe_finds_nothing(
    browser: Browser, shop: Shop, answered: str, scheme: Literal["light", "dark"], width: int
) -> None:
    """Neither in a view nor in its dialogs nor before signing in."""
    with visit(browser, shop.url, color_scheme=scheme, viewport={"width": width, "height": 800}) as tab:
        page = tab.page
        page.goto("/admin/")
        expect(page.get_by_label("API key")).to_be_visible()
        assert violations(page) == []
        sign_in(page, OPERATOR)
        for address, heading in OPERATORS_VIEWS.items():
            open_view(page, address, heading)
            assert violations(page) == [], address
        for address, button in (("#/tenants/shop/keys", "Make a key"), ("#/adapters", "Upload an adapter")):
            open_view(page, address, OPERATORS_VIEWS[address])
            page.get_by_role("button", name=button).click()
            expect(page.get_by_role("dialog")).to_be_visible()
            assert violations(page) == [], button
            page.keyboard.press("Escape")
            expect(page.get_by_role("button", name=button)).to_be_focused()


def test_tables_do_not_scroll_where_there_is_room(tab: Visit, answered: str) -> None:
    """Each of their columns is seen at once."""
    tab.page.set_viewport_size({"width": 1280, "height": 800})
    sign_in(tab.page, OPERATOR)
    for address, heading in OPERATORS_VIEWS.items():
        open_view(tab.page, address, heading)
        wider = "all => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.innerText)"
        assert tab.page.locator("main .scroll").evaluate_all(wider) == [], address


def test_a_view_sends_one_request_and_takes_the_focus(tab: Visit) -> None:
    """Two at most; opened from the keyboard, its heading is where reading goes on."""
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/", "Overview")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/admin/v1/" in request.url else None)
    links = page.get_by_role("navigation", name="Views").get_by_role("link").all_inner_texts()
    assert len(links) >= 17
    for title in (*links[1:], links[0]):
        asked.clear()
        page.get_by_role("navigation", name="Views").get_by_role("link", name=title).press("Enter")
        expect(page.get_by_role("heading", level=1)).to_be_focused()
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        expect(page.get_by_text(PENDING)).to_have_count(0)
        assert len(set(asked)) <= 2, (title, asked)  # some ask for the same again while they are open
        assert asked or title == "Playground", title  # which asks nothing without the scope to chat
        assert page.title().startswith(title)


def test_what_a_view_shows_of_one_thing_takes_two_requests_at_most(
    tab: Visit, operator: httpx2.Client, answered: str
) -> None:
    """With each filter, and where more is shown to whoever may chat."""
    page = tab.page
    own = {"scopes": ["admin:read", "admin:write", "chat"], "operator": True}
    key = operator.post("/tenants/operations/keys", json=own).raise_for_status().json()["key"]
    sign_in(page, key)
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(request.url) if "/v1/" in request.url else None)
    expected = {
        **{f"#/tenants/shop/{name}": 1 for name in ("keys", "users", "quotas")},
        f"#/turns/{answered}": 1,
        "#/usage?by=tenant&split=model&compare=true": 1,
        "#/routes/tiny-small": 1,
        "#/routing": 2,
        "#/routing?tenant=acme": 2,
        "#/caches": 2,
        "#/caches?tenant=acme": 2,
        "#/audit?tenant=acme": 1,
        "#/playground": 2,
        "#/plan?model=tiny-small": 1,
    }
    found: dict[str, int] = {}
    for address in expected:
        open_view(page, "#/", "Overview")
        asked.clear()
        page.goto(f"/admin/{address}")
        expect(page.get_by_role("heading", level=1)).not_to_have_text("Overview")
        expect(page.get_by_text(PENDING)).to_have_count(0)
        found[address] = len(asked)
    assert found == expected


def words_in_pieces(page: Page) -> list[str]:
    """Words of JSON that do not stand on one line."""
    found: list[str] = page.locator(".changes .token").evaluate_all(
        """(tokens) => tokens.filter((token) => {
          const range = document.createRange();
          range.selectNodeContents(token);
          return range.getClientRects().length !== 1;
        }).map(({ textContent }) => textContent)"""
    )
    return found


def test_the_audit_view_breaks_json_between_its_tokens(tab: Visit, operator: httpx2.Client) -> None:
    """On any screen."""
    quota = {"requests_per_minute": 600, "output_tokens_per_minute": 100_000, "spend_per_day": 10_000}
    match = {"if-match": "*"}
    operator.put("/tenants/shop/quotas", json={"quota": quota}, headers=match).raise_for_status()
    page = tab.page
    sign_in(page, OPERATOR)
    open_view(page, "#/audit", "Audit")
    changed = row(page, "tenant.update").locator(".changes")
    expect(changed).to_contain_text(
        '→ {"requests_per_minute": 600, "output_tokens_per_minute": 100000, "spend_per_day": 10000}'
    )
    expect(row(page, "route.create")).to_contain_text('→ [{"model": "tiny-small", "weight": 1}]')
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert words_in_pieces(page) == []
        lines = changed.locator(".token").evaluate_all("all => new Set(all.map(({ offsetTop }) => offsetTop)).size")
        assert lines > 1, "nothing had to be broken"


def test_no_figure_of_the_overview_stands_alone(tab: Visit) -> None:
    sign_in(tab.page, OPERATOR)
    loaded(tab.page, "Overview")
    for width, in_a_row in ((1280, 4), (390, 2)):
        tab.page.set_viewport_size({"width": width, "height": 800})
        tops: list[float] = tab.page.locator(".figures > div").evaluate_all(
            "all => all.map(({ offsetTop }) => offsetTop)"
        )
        assert set(Counter(tops).values()) == {in_a_row}


def test_the_first_visit_is_small(browser: Browser, shop: Shop) -> None:
    """At most 32 requests and 150 KB, as they travel; modules of other views are not among them, and the page itself
    names all files, so that none of them is found late. The next visit asks for the page and for two answers of the
    API."""
    with visit(browser, shop.url, first=True) as tab:
        page = tab.page
        finished: list[Request] = []
        page.on("requestfinished", lambda request: finished.append(request))
        sign_in(page, OPERATOR)
        loaded(page, "Overview")
        assert len(finished) <= 32, [request.url for request in finished]
        assert sum(request.sizes()["responseBodySize"] for request in finished) <= 150_000
        views = [request.url.rsplit("/", 1)[1] for request in finished if "/console/views/" in request.url]
        assert views == ["overview.js"]
        files = {request.url.split("/admin/")[1] for request in finished if "/static/" in request.url}
        html = tab.context.request.get("/admin/").text()
        assert len(files) >= 20 and not {path for path in files if path not in html}
        page.goto("/admin/")
        loaded(page, "Overview")
        travelled = page.evaluate(
            """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
              .filter(({ transferSize }) => transferSize > 0).map(({ name }) => name)"""
        )
        assert 1 <= len(travelled) <= 3, travelled


def test_a_view_that_cannot_be_loaded_says_so(tab: Visit) -> None:
    """Its module is asked for when it is opened, and again when somebody tries again."""
    page = tab.page
    sign_in(page, OPERATOR)
    page.route("**/views/usage.js", lambda route: route.abort())
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Usage").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("cannot be loaded")
    page.unroute("**/views/usage.js")
    page.get_by_role("button", name="Try again").press("Enter")
    loaded(page, "Usage")


def test_a_spent_budget_closes_no_view(tab: Visit, shop: Shop, operator: httpx2.Client) -> None:
    """Of the tenant whose turns are refused."""
    spent = {"quota": {"spend_per_day": 0, "requests_per_minute": 1}}
    operator.put("/tenants/shop/quotas", json=spent, headers={"if-match": "*"}).raise_for_status()
    scopes = {"scopes": ["chat", "admin:read"]}
    key = operator.post("/tenants/shop/keys", json=scopes).raise_for_status().json()["key"]
    asked = {"headers": {"authorization": f"Bearer {key}"}, "json": {"model": "small", "input": "hello"}}
    wait_until(lambda: httpx2.post(f"{shop.url}/v1/responses", timeout=30, **asked).is_error)
    sign_in(tab.page, key)
    for address, heading in admins_views("shop").items():
        open_view(tab.page, address, heading)
        expect(tab.page.get_by_role("alert")).to_have_count(0)
