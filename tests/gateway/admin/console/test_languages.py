"""The console in the reader's language."""

from __future__ import annotations

import re

import httpx2
import msgspec
import pytest
from playwright.sync_api import Browser, Page, Request, expect

from gateway.scaling.records import PoolReason, PoolRecord, PoolSize
from scale.reasons import ScaleReason, ScaleReasonKind
from tests.e2e.browser import needs_chromium, violations, visit
from tests.e2e.overflow import overflowing
from tests.e2e.pseudo_language import speak, untranslated
from tests.gateway.admin.conftest import CHAT, OPERATOR, Shop
from tests.gateway.admin.console.pages import OPERATORS_VIEWS, dialog, focused, row, wait_until

pytestmark = needs_chromium

GERMAN = {
    "#/": "Übersicht",
    "#/live": "Live",
    "#/usage": "Nutzung",
    "#/turns": "Anfragen",
    "#/comments": "Kommentare",
    "#/tenants": "Mandanten",
    "#/tenants/shop/keys": "Schlüssel von shop",
    "#/tenants/shop/users": "Benutzer von shop",
    "#/tenants/shop/quotas": "Kontingente von shop",
    "#/adapters": "Adapter",
    "#/routes": "Routen",
    "#/routes/tiny-small": "Route tiny-small",
    "#/routing": "Routing",
    "#/caches": "Caches",
    "#/pools": "Pools",
    "#/plan": "Planung",
    "#/prices": "Preise",
    "#/settings": "Einstellungen",
    "#/playground": "Playground",
    "#/sessions": "Sitzungen",
    "#/audit": "Audit-Protokoll",
}
"""Heading of each view by its address."""
PLANNED = "#/plan?model=llama-3.1-8b&hardware=h100"
"""A view that has more to say when it is asked."""
CATALOGUES = ("console", "administration", "answers", "names")
NAMES = "|".join(
    (
        r"(key|user|resp)_[0-9a-f]+|tiny-\w+|small-0|\{.*\}|int[48]",
        r"\b(shop|acme|other|demo|operations|ada|Roundhouse|UTC|Deutsch|English|configuration file)\b",
        r"\b(admin:\w+|chat|models|adapters)\b",
    )
)
"""What is in the shop, types of numbers and scopes: names that have no language."""


def sign_in(page: Page, key: str, address: str = "#/") -> None:
    """In any language."""
    page.goto(f"/admin/{address}")
    page.locator("input[type=password]").fill(key)
    page.locator("form button").click()
    expect(page.locator("nav.views")).to_be_visible()


def open_view(page: Page, address: str) -> None:
    """Go to a view, and wait until everything in it is there."""
    page.goto(f"/admin/{address}")
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator("main > [role=status], main p[role=status]").filter(has_text="…")).to_have_count(0)


@pytest.fixture
def answered(shop: Shop) -> str:
    """A turn of acme's, which the router has decided on -> its id."""
    body = {"model": "auto", "input": "hello", "max_output_tokens": 4}
    headers = {"authorization": f"Bearer {CHAT}"}
    response = httpx2.post(f"{shop.url}/v1/responses", json=body, headers=headers, timeout=30)
    return str(response.raise_for_status().json()["id"])


def test_a_german_browser_gets_a_german_console(browser: Browser, shop: Shop, answered: str) -> None:
    """axe finds nothing in any view, in a dialog, or before signing in."""
    assert GERMAN.keys() >= OPERATORS_VIEWS.keys()
    with visit(browser, shop.url, locale="de-DE") as tab:
        page = tab.page
        page.goto("/admin/")
        expect(page.locator("html")).to_have_attribute("lang", "de")
        expect(page.get_by_role("heading", name="Anmelden")).to_be_visible()
        assert violations(page, colours=False) == []
        page.get_by_label("API-Schlüssel").fill("wrong")
        page.get_by_role("button", name="Anmelden").click()
        expect(page.get_by_role("alert")).to_have_text("Der Server kennt diesen Schlüssel nicht.")
        sign_in(page, OPERATOR)
        for address, heading in GERMAN.items():
            open_view(page, address)
            expect(page.get_by_role("heading", level=1)).to_have_text(heading)
            assert page.title() == f"{heading.split(' ')[0]} · Roundhouse-Konsole" or "/" in address.strip("#/")
            assert violations(page, colours=False) == [], address
        open_view(page, f"#/turns/{answered}")
        expect(page.get_by_role("heading", name="Entscheidung")).to_be_visible()
        assert violations(page, colours=False) == []
        open_view(page, "#/tenants")
        page.get_by_role("button", name="Ändern: shop").click()
        dialog(page).get_by_label("Beschreibung").fill("Kuchen")
        expect(dialog(page).get_by_role("row").filter(has_text="Kuchen")).to_contain_text("Beschreibung")
        assert violations(page, colours=False) == []
        dialog(page).get_by_role("button", name="Ändern", exact=True).click()
        expect(row(page, "Kuchen")).to_be_visible()
        assert focused(page) != "body"


def test_numbers_money_and_times_are_german(browser: Browser, shop: Shop, operator: httpx2.Client) -> None:
    """And names of limits."""
    limits = {"quota": {"requests_per_minute": 12_345, "spend_per_day": 1_234_560_000}}
    operator.put("/tenants/shop/quotas", json=limits, headers={"if-match": "*"}).raise_for_status()
    with visit(browser, shop.url, locale="de-DE") as tab:
        sign_in(tab.page, OPERATOR, "#/tenants/shop/quotas")
        expect(row(tab.page, "Anfragen je Minute")).to_contain_text("12.345")
        expect(row(tab.page, "Ausgaben je Tag")).to_contain_text(re.compile(r"1\.234,56\s\$"))
        open_view(tab.page, "#/tenants/shop/users")
        expect(row(tab.page, "ada").locator("time")).to_have_text(re.compile(r"^\d\d\.\d\d\.\d{4}, \d\d:\d\d:\d\d$"))


def test_words_of_the_api_are_not_those_of_the_page(browser: Browser, shop: Shop, answered: str) -> None:
    """`up` is a rating there, and the state of an engine here."""
    headers = {"authorization": f"Bearer {CHAT}"}
    rating = {"rating": "up"}
    httpx2.post(f"{shop.url}/v1/responses/{answered}/feedback", json=rating, headers=headers).raise_for_status()
    asked = f"{shop.url}/admin/v1/turns/{answered}", {"authorization": f"Bearer {OPERATOR}"}
    # Turns and ratings are stored once a second.
    wait_until(lambda: bool(httpx2.get(asked[0], headers=asked[1]).json().get("feedback")))
    with visit(browser, shop.url, locale="de-DE") as tab:
        sign_in(tab.page, OPERATOR, "#/live")
        expect(row(tab.page, "tiny-small")).to_contain_text("in Betrieb")
        open_view(tab.page, f"#/turns/{answered}")
        expect(row(tab.page, "Daumen hoch")).to_be_visible()


def test_the_choice_stays_and_counts_for_all_pages(browser: Browser, shop: Shop) -> None:
    """It can be made before signing in, and taken back."""
    with visit(browser, shop.url, locale="en-US") as tab:
        page = tab.page
        page.goto("/admin/#/audit")
        page.get_by_label("Language").select_option(label="Deutsch")
        expect(page.get_by_role("heading", name="Anmelden")).to_be_visible()
        sign_in(page, OPERATOR, "#/audit")
        expect(page.get_by_role("heading", level=1)).to_have_text("Audit-Protokoll")
        page.goto("/")
        expect(page.get_by_role("button", name="Neuer Chat")).to_be_visible()
        page.goto("/admin/#/audit")
        page.get_by_label("Sprache").select_option(label="Wie der Browser es sagt")
        expect(page.get_by_role("heading", level=1)).to_have_text("Audit")


@pytest.mark.parametrize(("locale", "expected"), [("en-US", set[str]()), ("de-DE", set(CATALOGUES))])
def test_only_the_language_that_is_chosen_is_loaded(
    browser: Browser, shop: Shop, locale: str, expected: set[str]
) -> None:
    """The first visit stays within 150 KB and 45 requests in German too."""
    with visit(browser, shop.url, first=True, locale=locale) as tab:
        finished: list[Request] = []
        tab.page.on("requestfinished", lambda request: finished.append(request))
        sign_in(tab.page, OPERATOR)
        open_view(tab.page, "#/")
        loaded = [re.search(r"/languages/\w+/(\w+)\.js", request.url) for request in finished]
        assert {found[1] for found in loaded if found} == expected
        assert len(finished) <= 45, [request.url for request in finished]
        assert sum(request.sizes()["responseBodySize"] for request in finished) <= 150_000


@pytest.mark.parametrize("width", [320, pytest.param(1280, marks=pytest.mark.deep)])
def test_all_texts_are_in_the_catalogues_and_longer_ones_fit(
    browser: Browser, shop: Shop, answered: str, width: int
) -> None:
    """In a language that nobody speaks: nothing is left in English, nothing is wider than the screen or is cut off."""
    with visit(browser, shop.url, locale="de-DE", viewport={"width": width, "height": 800}) as tab:
        page = tab.page
        speak(page, *CATALOGUES)

        found: dict[str, list[str]] = {}

        def complete(state: str) -> None:
            found[state] = untranslated(page, names=NAMES) + overflowing(page)

        page.goto("/admin/")
        expect(page.locator("input[type=password]")).to_be_visible()
        complete("before signing in")
        sign_in(page, OPERATOR)
        for address in (*GERMAN, PLANNED, f"#/turns/{answered}"):
            open_view(page, address)
            complete(address)
        for address in ("#/tenants", "#/tenants/shop/keys", "#/adapters", "#/routes", "#/prices"):
            open_view(page, address)
            page.locator("main .heading button").first.click()
            expect(dialog(page)).to_be_visible()
            expect(dialog(page).get_by_role("status").filter(has_text="…")).to_have_count(0)
            complete(f"{address}: its first dialog")
            page.keyboard.press("Escape")
            expect(dialog(page)).to_have_count(0)
        problems = [f"{state}: {each}" for state, those in found.items() for each in those]
        assert not problems, "\n".join(problems)


SIZED = (
    PoolReason.of(ScaleReason(ScaleReasonKind.LOAD, {"offered": 1234.5, "sized": 1470, "spare": 1})),
    PoolReason.of(ScaleReason(ScaleReasonKind.BOUNDS, {"bound": "max_replicas", "limit": 4, "target": 9})),
    PoolReason.of(ScaleReason(ScaleReasonKind.KV, {"replicas": 6, "percent": 85})),
    PoolReason("load", "work keeps 3.7 replicas busy: 7 with room for chance"),
    PoolReason("weather", "it rains"),
)
"""Reasons with figures, one of an older version, and one that nobody here knows."""


@pytest.mark.parametrize(
    ("locale", "said", "english"),
    [
        (
            "en-US",
            [
                "work keeps 1,234.5 replicas busy: 1,470 with room for chance and 1 spare",
                "max_replicas is 4, not 9",
                "KV blocks in use need 6 replicas at 85% of each",
                "work keeps 3.7 replicas busy: 7 with room for chance",
                "it rains",
            ],
            5,
        ),
        (
            "de-DE",
            [
                "die Arbeit lastet 1.234,5 Replikate aus: 1.470 mit Spielraum für den Zufall und 1 in Reserve",
                "max_replicas ist 4, nicht 9",
                "für die belegten KV-Blöcke sind 6 Replikate nötig, bei 85 % in jedem",
                "die Arbeit lastet 3,7 Replikate aus: 7 mit Spielraum für den Zufall",
                "it rains",
            ],
            1,
        ),
    ],
)
def test_reasons_of_a_pool_s_size_are_in_the_reader_s_language(
    browser: Browser, shop: Shop, operator: httpx2.Client, locale: str, said: list[str], english: int
) -> None:
    """What stays English is marked as such."""
    counts = {"min_replicas": 1, "max_replicas": 4, "ready": 4, "starting": 0, "draining": 0}
    record = PoolRecord(**counts, desired=4, offered=5.0, since=0.0, time=0.0, reasons=SIZED)
    pools = operator.get("/pools").raise_for_status().json()
    pools["data"][0]["size"] = msgspec.to_builtins(PoolSize.of("small", record))
    with visit(browser, shop.url, locale=locale) as tab:
        tab.page.route("**/admin/v1/pools", lambda route: route.fulfill(json=pools))
        sign_in(tab.page, OPERATOR, "#/pools")
        reasons = tab.page.locator("main li")
        expect(reasons).to_have_text(said)
        expect(reasons.locator("[lang=en]")).to_have_count(english)


ENGLISH = re.compile(r"\b(the|of|and|per|at|each|there|mean|needs|requests?|replicas?|layers|left|hours?|money)\b")
"""Words that sentences and units of the planner have, and German does not."""


def test_a_plan_is_german_with_all_its_figures(browser: Browser, shop: Shop, operator: httpx2.Client) -> None:
    """Values, units and reasons; so are refusals, but for what is wrong with a checkpoint, which is marked."""
    with visit(browser, shop.url, locale="de-DE") as tab:
        page, main = tab.page, tab.page.locator("main")
        sign_in(page, OPERATOR, "#/")
        open_view(page, f"{PLANNED}&rate=900000&price=1234.5")
        expect(page.get_by_role("heading", level=2).first).to_contain_text("Replikate von llama-3.1-8b")
        expect(row(page, "KV-Bytes")).to_contain_text("32 Schichten")
        expect(row(page, "ausgelastet")).to_contain_text(
            re.compile(r"\d\.\d{3} ausgelastet: durch 0,85.*; 1 in Reserve")
        )
        expect(row(page, "Replikate zu 1.234,5")).to_have_count(1)
        expect(main.locator("[lang=en]")).to_have_count(0)
        assert ENGLISH.findall(main.inner_text()) == []
        assert violations(page, colours=False) == []
        for asked, refusal in {
            "model=llama-3.1-70b&hardware=l4": "llama-3.1-70b in bf16 braucht",
            "model=llama-3.1-8b&hardware=h100&ttft=0.0001": "TTFT von 0,0001 s",
            "model=llama-3.1-8b&hardware=abacus": "abacus ist kein bekanntes Gerät",
            "model=nobody&hardware=h100": "nobody ist kein Modell des Speichers",
        }.items():
            open_view(page, f"#/plan?{asked}")
            expect(main.get_by_role("alert")).to_contain_text("Es gibt keinen Plan: ")
            expect(main.get_by_role("alert")).to_contain_text(refusal)
            expect(main.locator("[lang=en]")).to_have_count(0)
            assert ENGLISH.findall(main.inner_text()) == [], asked
        told = operator.get("/plan", params={"model": "nobody", "hardware": "h100"}).raise_for_status().json()
        told |= {"problem": "the checkpoint of x cannot be used", "detail": "config.json: vocab_size is missing"}
        page.route("**/admin/v1/plan?*", lambda route: route.fulfill(json=told))
        open_view(page, "#/plan?model=x&hardware=h100")
        expect(main.get_by_role("alert")).to_contain_text("Plan: der Checkpoint von x ist nicht verwendbar.")
        expect(main.locator("[lang=en]")).to_have_text(["config.json: vocab_size is missing"])
