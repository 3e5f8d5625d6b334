"""Errors on the chat page: a sentence for each code, and what the server says of it behind *Details*."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from gateway.errors import ContentBlocked, invalid_value
from tests.e2e.browser import needs_chromium, violations, visit
from tests.e2e.page import ask, reload
from tests.e2e.scripted import Answer, ScriptedServer
from tests.e2e.test_page_compare import compare
from tests.gateway.http.test_languages import read
from tests.gateway.protocol.test_protocol_docs import ERRORS, names, table

pytestmark = needs_chromium

CODES = [names(row[:1])[0] for row in table(ERRORS, "Errors")]
UNKNOWN = "of_a_newer_server"
SAID = "spend_per_day: 13765 of 20000 micro-dollars are used; the limit is free in 41944.5 s"
"""What the server says to programs."""

DRAWN = """async ([codes, message]) => {
  const { src } = document.querySelector("script[src$='/js/main.js']");
  const { applyEvent, newTurn } = await import(new URL("turn.js", src));
  const { TurnView } = await import(new URL("turn-view.js", src));
  const context = { turnOf() {}, comments: () => false, away: () => false, oldest: () => [], cards: {}, tiers: {} };
  const drawn = (code, event) => {
    const turn = newTurn({ id: code, parent: null, question: "hello", model: "auto", now: 0, summary: true });
    applyEvent(turn, event, 1);
    const element = document.querySelector("#log").appendChild(document.createElement("article"));
    new TurnView(turn, context, element);
    const visible = element.querySelector(".failure").innerText;
    const sentence = element.querySelector(".failure p").textContent;
    element.remove();
    return [sentence, visible];
  };
  const headers = { "retry-after": "41944.5" };
  const failed = (code) => ({ status: "failed", usage: null, error: { code: "server_error", type: code, message } });
  return codes.map((code) => [
    drawn(code, { type: "error", error: { code, message } }),
    drawn(code, { type: "response.failed", sequence_number: 1, response: failed(code) }),
    drawn(code, { type: "error", error: { code, message, headers } }),
  ]);
}"""
"""Draws a turn that was refused, one that failed, and one that may be asked again later, for each code: the sentence
and all that can be seen of the failure. They are summaries: to others, ways out of a full context are offered."""


@pytest.mark.parametrize("locale", ["en-US", "de-DE"])
def test_each_code_has_a_sentence_of_its_own(browser: Browser, server: ScriptedServer, locale: str) -> None:
    """One that the catalogue has; nothing that is seen has names of the API, micro-dollars or raw seconds."""
    catalogue = read("de", "answers")["default"]
    known = {str(each) for each in (catalogue if locale == "en-US" else catalogue.values())}
    with visit(browser, server.url, locale=locale) as tab:
        tab.page.goto("/")
        drawn: list[list[list[str]]] = tab.page.evaluate(DRAWN, [[*CODES, UNKNOWN], SAID])
    sentences = [refused[0] for refused, _, _ in drawn]
    assert [sentence for sentence in sentences if sentence not in known] == []
    assert len(set(sentences)) == len(CODES) + 1, [each for each in sentences if sentences.count(each) > 1]
    assert [failed for _, (failed, _), _ in drawn] == sentences
    for states, sentence in zip(drawn, sentences, strict=True):
        again = states[-1][0].removeprefix(sentence)
        assert re.search(r"\b\d\d?:\d\d\b", again), again
        for _, visible in states:
            assert not re.search(r"_|micro|\d{3}|\d[.,]\d|\d s\b", visible), visible


REFUSED: dict[str, tuple[Any, str, str]] = {
    "invalid_value": (
        invalid_value("text.format.schema", "a schema of this kind is not supported"),
        "The server does not take a value of this question or of its settings. Change it, and ask again.",
        "Text.format.schema: a schema of this kind is not supported.",
    ),
    "content_blocked": (
        ContentBlocked("input: it holds what this server does not accept (card_number); leave it out"),
        "This question holds something that this server does not accept. Leave it out, and ask again.",
        "Input: it holds what this server does not accept (card_number); leave it out.",
    ),
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_to_be_changed_is_said_in_details(browser: Browser, server: ScriptedServer, code: str) -> None:
    """Which are closed, open by keys, are in English where nobody has translated them, and stay in the conversation."""
    refusal, sentence, details = REFUSED[code]
    server.pipeline.answers["hello"] = Answer(refusal=refusal)
    with visit(browser, server.url) as tab:
        tab.page.goto("/")
        ask(tab.page, "hello")
        for again in (False, True):
            if again:
                reload(tab.page)
            alert = tab.page.get_by_role("article").get_by_role("alert")
            expect(alert.locator("p").first).to_have_text(sentence)
            said = alert.get_by_text(details, exact=True)
            expect(said).to_be_hidden()
            alert.locator("summary").press("Enter")
            expect(said).to_be_visible()
            expect(said).to_have_attribute("lang", "en")
            assert violations(tab.page) == []


def test_a_refusal_among_others_has_details_too(browser: Browser, server: ScriptedServer) -> None:
    refusal, sentence, details = REFUSED["invalid_value"]
    server.pipeline.answers |= {"hello": Answer(tier="medium"), "small: hello": Answer(refusal=refusal)}
    with visit(browser, server.url) as tab:
        tab.page.goto("/")
        ask(tab.page, "hello")
        note = compare(tab.page, "small").locator(".note").filter(has_text=sentence)
        note.locator("summary").click()
        expect(note.get_by_text(details, exact=True)).to_be_visible()


def test_a_german_page_says_details_in_german_where_it_can(browser: Browser, server: ScriptedServer) -> None:
    refusal, _, _ = REFUSED["content_blocked"]
    server.pipeline.answers["hallo"] = Answer(refusal=refusal)
    with visit(browser, server.url, locale="de-DE") as tab:
        tab.page.goto("/")
        tab.page.locator("#message").fill("hallo")
        tab.page.locator("#message").press("Enter")
        alert = tab.page.get_by_role("article").get_by_role("alert")
        alert.get_by_text("Einzelheiten").click()
        expect(alert.locator("details p")).to_have_text(
            "Die Frage enthält etwas, das dieser Server nicht annimmt (card_number). Bitte weglassen. [input]"
        )
