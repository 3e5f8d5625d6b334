"""The chat page in the reader's language."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from gateway.errors import EngineFailed
from router.options import TierOption
from tests.e2e.browser import Visit, needs_chromium, violations, visit
from tests.e2e.overflow import overflowing
from tests.e2e.page import LONG, answer, answered
from tests.e2e.pseudo_language import speak, untranslated
from tests.e2e.scripted import Answer, ScriptedServer
from tests.e2e.test_page_attachments import drop

pytestmark = needs_chromium

CATALOGUE = "**/languages/de/chat.js"
OPTIONS = (TierOption("small", 0.31, 0.02, 0.0, 0.29, True), TierOption("large", 0.4, 0.6, 0.35, -0.55, False))


@pytest.fixture
def german(browser: Browser, server: ScriptedServer) -> Iterator[Visit]:
    with visit(browser, server.url, locale="de-DE") as tab:
        tab.page.goto("/")
        ready(tab.page)
        yield tab


def ready(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text(re.compile("^(Verbunden|Connected|⟦Connected.*)$"))


def ask(page: Page, question: str) -> None:
    page.locator("#message").fill(question)
    page.locator("#message").press("Enter")
    answered(page)


def test_a_german_browser_gets_a_german_page(german: Visit, server: ScriptedServer) -> None:
    """Its regions, what assistive technology is told, numbers, money and the language that it is read aloud in."""
    page = german.page
    expect(page.locator("html")).to_have_attribute("lang", "de")
    expect(page.get_by_role("navigation", name="Chats")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text("Chat")
    expect(page.get_by_role("log", name="Chat")).to_have_attribute("aria-busy", "false")
    expect(page.get_by_label("Nachricht", exact=True)).to_be_focused()
    assert violations(page, colours=False) == []
    server.pipeline.answers["Hallo"] = Answer(
        text="Guten Tag.",
        cost=1_234_567,
        input_tokens=12_345,
        options=OPTIONS,
        reasons=(*Answer().reasons, "the unknown"),
    )
    ask(page, "Hallo")
    expect(page.get_by_role("status").filter(has_text="Antwort vollständig")).to_have_count(1)
    expect(page.locator("#spent")).to_have_text("Dieser Chat hat 1,23 $ gekostet.".replace(" $", "\N{NO-BREAK SPACE}$"))
    page.locator("details.route summary").click()
    facts = page.locator(".route-facts")
    expect(facts).to_contain_text("12.345 gelesen (16 davon schon bekannt), 3 geschrieben")
    expect(facts.get_by_role("row", name="klein")).to_contain_text("gewählt")
    expect(facts.get_by_role("row", name="klein")).to_contain_text("0,310")
    reasons = facts.locator("dd > ul > li")
    expect(reasons).to_have_text(["Komplexität 0,12 verlangt die Stufe klein", "ist eine Frage (+0,12)", "the unknown"])
    # What is not translated is read aloud as English.
    expect(facts.locator("[lang=en]")).to_have_text(["the unknown"])
    assert violations(page, colours=False) == []


def test_failures_limits_and_counts_are_german(german: Visit, server: ScriptedServer) -> None:
    page = german.page
    drop(page, eins_txt=b"eins", zwei_txt=b"eins zwei", bild_png=b"\0")
    expect(page.locator("#chips .tokens")).to_have_text(["Ein Token", "2 Tokens"])
    expect(page.locator("#refusal")).to_contain_text("bild.png ist kein Text in UTF-8")
    server.pipeline.answers["kaputt"] = Answer(text="halb", failure=EngineFailed("it is gone"))
    page.get_by_role("button", name="eins.txt entfernen").click()
    page.get_by_role("button", name="zwei.txt entfernen").click()
    ask(page, "kaputt")
    failure = page.get_by_role("article").get_by_role("alert")
    expect(failure).to_contain_text("Das Modell ist beim Antworten ausgefallen.")
    assert violations(page, colours=False) == []
    for name in ("Einstellungen", "Prompts"):
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert violations(page, colours=False) == [], name
        page.keyboard.press("Escape")
    page.keyboard.press("ControlOrMeta+k")
    expect(page.get_by_role("dialog", name="Finden").get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("tastenk")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Tastenkürzel")).to_contain_text("Strg Umschalt O")
    assert violations(page, colours=False) == []


def test_shared_conversations_are_german(german: Visit, server: ScriptedServer, browser: Browser) -> None:
    """The dialog that shares one, its reader's page, and why a key is refused there."""
    page = german.page
    ask(page, "Hallo")
    page.get_by_role("button", name="Teilen", exact=True).click()
    dialog = page.get_by_role("dialog", name="Diesen Chat teilen")
    dialog.get_by_role("button", name="Adresse erzeugen").click()
    address = dialog.get_by_label("Adresse", exact=True)
    expect(address).to_have_value(re.compile("/s/"))
    expect(dialog.get_by_role("button", name=re.compile("^Widerrufen: Geteilt am .* bis .*")).first).to_be_visible()
    assert violations(page, colours=False) == []
    with visit(browser, server.url, locale="de-DE") as tab:
        reader = tab.page
        reader.goto(address.input_value())
        refusal = reader.get_by_role("dialog", name="API-Schlüssel").get_by_role("alert")
        for key in ("wrong", "roundhouse-demo"):
            reader.get_by_label("Schlüssel", exact=True).fill(key)
            reader.get_by_role("button", name="Weiter").click()
            if key == "wrong":
                expect(refusal).to_contain_text("Dieser API-Schlüssel ist falsch.")
                assert violations(reader, colours=False) == []
        expect(reader.locator("#told")).to_contain_text("Ein geteilter Chat. Er kann bis")
        expect(reader.get_by_role("heading", name="Frage")).to_have_count(1)
        assert violations(reader, colours=False) == []


def language(page: Page, button: str, label: str, choice: str) -> None:
    """Choose in the settings what the page is shown in."""
    page.get_by_role("button", name=button, exact=True).click()
    page.get_by_role("dialog").get_by_label(label, exact=True).select_option(label=choice)


def test_the_choice_stays_and_can_be_taken_back(browser: Browser, server: ScriptedServer) -> None:
    """The conversation is still there."""
    with visit(browser, server.url, locale="en-US") as tab:
        page = tab.page
        page.goto("/")
        ready(page)
        expect(page.locator("html")).to_have_attribute("lang", "en")
        ask(page, "hello")
        language(page, "Settings", "Language", "Deutsch")
        expect(page.locator("html")).to_have_attribute("lang", "de")
        expect(answer(page)).to_have_text("A short answer.")
        page.reload()
        expect(page.get_by_role("button", name="Neuer Chat")).to_be_visible()
        language(page, "Einstellungen", "Sprache", "Wie der Browser es sagt")
        expect(page.get_by_role("button", name="New chat")).to_be_visible()
        expect(answer(page)).to_have_text("A short answer.")


def test_a_choice_loses_no_temporary_chat(browser: Browser, server: ScriptedServer) -> None:
    """It shows when the page is loaded the next time."""
    with visit(browser, server.url, locale="en-US") as tab:
        page = tab.page
        page.goto("/")
        ready(page)
        page.get_by_role("button", name="Temporary chat").click()
        ask(page, "hello")
        language(page, "Settings", "Language", "Deutsch")
        expect(page.get_by_role("dialog").get_by_role("status")).to_contain_text("forgets this conversation")
        expect(answer(page)).to_have_text("A short answer.")
        page.reload()
        expect(page.locator("html")).to_have_attribute("lang", "de")


def test_nothing_is_shown_in_the_other_language_first(browser: Browser, server: ScriptedServer) -> None:
    """What the page says stays hidden until the catalogue has come."""
    held: list[Route] | None = []

    def hold(route: Route) -> None:
        if held is None:
            route.continue_()
        else:
            held.append(route)

    with visit(browser, server.url, locale="de-DE") as tab:
        page = tab.page
        page.route(CATALOGUE, hold)
        with page.expect_request(CATALOGUE):
            page.goto("/", wait_until="commit")
        question = page.locator("#welcome h2")
        expect(question).to_be_attached()
        expect(question).to_be_hidden()
        waiting, held = held, None
        for route in waiting:
            route.continue_()
        expect(page.get_by_role("heading", name="Womit kann ich helfen?")).to_be_visible()


def test_without_its_catalogue_the_page_is_english(browser: Browser, server: ScriptedServer) -> None:
    """And says so to what reads it aloud."""
    with visit(browser, server.url, locale="de-DE") as tab:
        tab.page.route(CATALOGUE, lambda route: route.abort())
        tab.page.goto("/")
        ready(tab.page)
        expect(tab.page.get_by_text("What can I answer for you?")).to_be_visible()
        expect(tab.page.locator("html")).to_have_attribute("lang", "en")


LONG_NAME = "a-model-with-a-name-that-is-much-longer-than-the-list-of-models-is-wide"
LONG_QUESTION = "A question that is so long that no list of conversations has room for all of its words"
NAMES = "|".join((r"\bwho\b", LONG_NAME, LONG_QUESTION))
"""What readers have written, and a model's name."""
Complete = Callable[[str], None]
"""Looks at what the page shows in a state of this name."""


@pytest.mark.parametrize("width", [320, pytest.param(1280, marks=pytest.mark.deep)])
def test_all_texts_are_in_the_catalogue_and_longer_ones_fit(
    browser: Browser, server: ScriptedServer, width: int
) -> None:
    """In a language that nobody speaks: nothing is left in English, nothing is wider than the screen or cut off."""
    server.pipeline.answers |= {
        LONG_QUESTION: Answer(cost=20, options=OPTIONS),
        "held": Answer(text=LONG, hold_at=40),
        "broken": Answer(text="half", failure=EngineFailed("it is gone")),
    }
    with visit(browser, server.url, locale="de-DE", viewport={"width": width, "height": 800}) as tab:
        page = tab.page
        speak(page, "chat", "answers")
        found: dict[str, list[str]] = {}

        def complete(state: str) -> None:
            found[state] = untranslated(page, "option", names=NAMES) + overflowing(page, lists=width > 320)

        page.route("**/v1/models", with_long_name)
        page.goto("/")
        ready(page)
        complete("welcome")
        see_answers(page, complete)
        see_dialogs(page, complete)
        if width < 1000:
            page.locator("#sidebar-toggle").click()
        see_list(page, complete)
        see_restart(page, server, complete)
        problems = [f"{state}: {each}" for state, those in found.items() for each in those]
        assert not problems, "\n".join(problems)


def with_long_name(route: Route) -> None:
    """Offer one more model."""
    response = route.fetch()
    models = response.json()
    models["data"].append({**models["data"][0], "id": LONG_NAME})
    route.fulfill(response=response, json=models)


def see_answers(page: Page, complete: Complete) -> None:
    ask(page, LONG_QUESTION)
    page.locator("details.route summary").click()
    page.locator("[data-action='rate'][data-value='down']").click()
    complete("card")
    page.locator("[data-action='compare']").click()
    complete("whom to compare")
    page.locator(".compare-form [type='submit']").click()
    answered(page)
    complete("comparison")
    page.locator(".comparison-foot button").click()
    page.locator("[data-action='edit']").click()
    complete("question that is changed")
    page.keyboard.press("Escape")
    ask(page, "broken")
    complete("failure")
    drop(page, a_txt=b"alpha", b_png=b"\0")
    complete("attachments")
    page.locator("#chips button").click()
    page.locator("#model").select_option(LONG_NAME)
    complete("long name")
    page.locator("#model").select_option("auto")


def see_dialogs(page: Page, complete: Complete) -> None:
    def press(state: str, button: str) -> None:
        page.locator(button).first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        complete(state)

    press("settings", "#settings")
    page.keyboard.press("Escape")
    press("prompts", "#prompts")
    press("new prompt", "dialog[open] .panel-foot button")
    page.locator("dialog[open] input").first.fill("greeting" * 9)
    page.locator("dialog[open] textarea").fill("hello {{who}}")
    press("list of prompts", "dialog[open] [type='submit']")
    press("prompt's variables", "dialog[open] .prompt")
    page.keyboard.press("Escape")
    page.locator("#message").fill("")
    page.keyboard.press("ControlOrMeta+k")
    expect(page.locator("dialog[open] .prompt").last).to_be_visible()
    complete("what can be found")
    page.get_by_role("dialog").get_by_role("button", name="Keyboard shortcuts").press("Enter")
    expect(page.locator("dialog[open] dl")).to_be_visible()
    complete("list of keys")
    page.keyboard.press("Escape")
    press("key", "#connection")
    page.keyboard.press("Escape")


def see_list(page: Page, complete: Complete) -> None:
    complete("list")
    page.locator("#share").click()
    page.locator("dialog[open] .primary").click()
    expect(page.locator("dialog[open] input[readonly]")).to_have_value(re.compile("/s/"))
    complete("shared")
    page.keyboard.press("Escape")
    page.locator("[data-act^='folder']").click()
    complete("folder")
    page.keyboard.press("Escape")
    page.locator("[data-act^='bin']").click()
    complete("deleted")
    page.locator("#temporary").click()
    complete("temporary")


def see_restart(page: Page, server: ScriptedServer, complete: Complete) -> None:
    """What the page says of its connection while the server goes away and comes back."""
    page.locator("#message").fill("held")
    page.locator("#message").press("Enter")
    expect(answer(page)).to_contain_text("word")
    server.call(server.gateway.connections.drain)
    state = page.locator("#connection")
    expect(state).to_have_attribute("data-state", "draining")
    complete("restarting")
    server.release()
    expect(state).to_have_attribute("data-state", "waiting")
    complete("away")
    server.gateway.connections.draining = False
    ready(page)
