"""A conversation that fills the model's context: how full it is, and the ways out when it is full."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.browser import Visit, needs_chromium
from tests.e2e.page import answer, answered, ask, connected, message, reload
from tests.e2e.scripted import Answer, ScriptedServer

pytestmark = needs_chromium


def asked(server: ScriptedServer) -> list[str]:
    """The messages of the last turn that ran."""
    return [entry.content for entry in server.pipeline.turns[-1].conversation]


def full(tab: Visit, server: ScriptedServer) -> Any:
    """Three questions, of which the last finds no room; returns what the page says."""
    for question in ("one", "two"):
        server.pipeline.answers[question] = Answer(text=f"answer to {question}")
        ask(tab.page, question)
        answered(tab.page)
    server.pipeline.room = 3
    ask(tab.page, "three")
    alert = tab.page.get_by_role("alert")
    expect(alert).to_contain_text("longer than the model can read. The oldest turns are “one”")
    return alert


def test_the_oldest_turns_are_left_out_and_named(tab: Visit, server: ScriptedServer) -> None:
    """Also for the questions that follow, with and without what the server remembers, and after a reload."""
    full(tab, server).get_by_role("button", name="Leave them out").click()
    answered(tab.page)
    expect(message(tab.page)).to_be_focused()
    assert asked(server) == ["two", "answer to two", "three"]
    mark = "Not read by the model from here on: “one”."
    expect(tab.page.locator(".omitted")).to_have_text(mark)
    expect(tab.page.locator(".question p")).to_have_text(["one", "two", "three"])
    server.pipeline.room = None
    ask(tab.page, "four")
    answered(tab.page)
    assert asked(server) == ["two", "answer to two", "three", "A short answer.", "four"]
    reload(tab.page)
    connected(tab.page)
    expect(tab.page.locator(".omitted")).to_have_text(mark)
    server.call(server.gateway.turns.forget, server.pipeline.turns[-1].id)
    ask(tab.page, "five")
    answered(tab.page)
    assert asked(server) == ["two", "answer to two", "three", "A short answer.", "four", "A short answer.", "five"]


def test_more_is_left_out_until_there_is_room(tab: Visit, server: ScriptedServer) -> None:
    """The last way out is a shorter question."""
    alert = full(tab, server)
    server.pipeline.room = 1
    alert.get_by_role("button", name="Leave them out").click()
    expect(alert).to_contain_text("The oldest turns are “two”.")
    server.pipeline.room = 0
    alert.get_by_role("button", name="Leave them out").click()
    expect(alert).to_contain_text("Ask with a shorter text.")
    expect(alert.get_by_role("button")).to_have_text(["Start anew", "Retry"])


def summarised(tab: Visit, server: ScriptedServer) -> None:
    alert = full(tab, server)
    server.pipeline.room = 5
    alert.get_by_role("button", name="Summarise them").click()
    expect(tab.page.locator(".markdown")).to_have_count(4)
    answered(tab.page)


def test_a_summary_stands_for_the_oldest_turns(tab: Visit, server: ScriptedServer) -> None:
    """The question that found no room is asked after it."""
    summarised(tab, server)
    summary, last = server.pipeline.turns[-2:]
    [one, first, wish] = [entry.content for entry in summary.conversation]
    assert (one, first) == ("one", "answer to one")
    assert wish.startswith("Summarise our conversation")
    assert asked(server) == [wish, "A short answer.", "two", "answer to two", "three"]
    assert last.request.previous_response_id is None
    expect(tab.page.locator(".omitted")).to_have_text("Summary of “one”. The model reads it in their place.")
    expect(tab.page.locator(".question p")).to_have_text(["one", "two", "three"])
    server.pipeline.room = None
    ask(tab.page, "four")
    answered(tab.page)
    assert server.pipeline.turns[-1].request.previous_response_id == last.id
    assert asked(server)[-3:] == ["three", "A short answer.", "four"]


def test_a_summary_can_be_changed(tab: Visit, server: ScriptedServer) -> None:
    """What followed is asked again after the other text; the former summary stays."""
    summarised(tab, server)
    turn = tab.page.get_by_role("article").nth(2)
    turn.hover()
    turn.get_by_role("button", name="Edit").click()
    text = turn.get_by_role("textbox", name="Summary")
    expect(text).to_have_value("A short answer.")
    text.fill("We counted to two.")
    text.press("Enter")
    answered(tab.page)
    assert asked(server)[1:] == ["We counted to two.", "two", "answer to two", "three"]
    expect(tab.page.locator(".markdown").nth(2)).to_have_text("We counted to two.")
    tab.page.get_by_role("button", name="Earlier version").click()
    expect(tab.page.locator(".markdown").nth(2)).to_have_text("A short answer.")
    expect(answer(tab.page)).to_have_text("A short answer.")


def test_a_summary_that_fails_stands_for_nothing(tab: Visit, server: ScriptedServer) -> None:
    alert = full(tab, server)
    server.pipeline.room = 2
    alert.get_by_role("button", name="Summarise them").click()
    expect(alert.get_by_role("button")).to_have_text(["Retry"])
    server.pipeline.room = None
    ask(tab.page, "four")
    answered(tab.page)
    assert asked(server) == ["one", "answer to one", "two", "answer to two", "four"]


def test_the_question_can_be_asked_anew(tab: Visit, server: ScriptedServer) -> None:
    """In a conversation of its own, when its writer is ready."""
    full(tab, server).get_by_role("button", name="Start anew").click()
    expect(tab.page.get_by_role("article")).to_have_count(0)
    expect(message(tab.page)).to_have_value("three")
    expect(message(tab.page)).to_be_focused()
    tab.page.keyboard.press("Enter")
    answered(tab.page)
    assert asked(server) == ["three"]


@pytest.mark.parametrize("tokens", [780, 850])
def test_a_meter_says_how_full_the_context_is(tab: Visit, server: ScriptedServer, tokens: int) -> None:
    """And from 80 % on a note, with a way to make room before there is none."""
    server.pipeline.answers["hello"] = Answer(text="hi", chunk=1, input_tokens=tokens)
    meter = tab.page.get_by_role("meter", name="Context used")
    expect(meter).to_be_hidden()
    ask(tab.page, "hello")
    answered(tab.page)
    expect(tab.page.locator("#context-figures")).to_have_text(f"{tokens + 2} of 1,000 tokens")
    assert meter.evaluate("meter => [meter.value, meter.max]") == [tokens + 2, 1000]
    note = tab.page.get_by_text("% of what the model can read")
    if tokens < 800:
        expect(note).to_be_hidden()
        return
    expect(note).to_have_text("The conversation fills 85 % of what the model can read.")
    tab.page.get_by_role("button", name="Summarise the oldest turns").click()
    answered(tab.page)
    expect(note).to_be_hidden()
    ask(tab.page, "more")
    answered(tab.page)
    assert asked(server)[1:] == ["A short answer.", "more"]
