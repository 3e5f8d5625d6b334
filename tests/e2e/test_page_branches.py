"""Questions that are changed and asked again on the chat page: other branches of a conversation, which all stay."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import Visit, needs_chromium, visit
from tests.e2e.page import answer, answered, ask, connected, message, reload, watched
from tests.e2e.scripted import Answer, ScriptedServer

pytestmark = needs_chromium


def change(page: Page, question: str, other: str) -> None:
    """Ask another question in the place of one."""
    turn = page.get_by_role("article").filter(has_text=question)
    turn.hover()
    turn.get_by_role("button", name="Edit").click()
    turn.get_by_role("textbox", name="Question").fill(other)
    turn.get_by_role("textbox", name="Question").press("Enter")
    answered(page)


def conversation(tab: Visit, server: ScriptedServer) -> None:
    """Two turns, of which the first was changed after the second: two branches."""
    server.pipeline.answers |= {each: Answer(text=f"answer to {each}") for each in ("one", "two", "uno", "due")}
    for question in ("one", "two"):
        ask(tab.page, question)
        answered(tab.page)
    change(tab.page, "one", "uno")


def test_a_changed_question_begins_another_branch(tab: Visit, server: ScriptedServer) -> None:
    """Nothing is overwritten; each branch goes on where it was, for the server too, and a reload keeps them."""
    conversation(tab, server)
    expect(tab.page.locator(".markdown")).to_have_text(["answer to uno"])
    expect(tab.page.locator(".versions > span")).to_have_text(["2/2"])
    assert [entry.content for entry in server.pipeline.turns[-1].conversation] == ["uno"]
    ask(tab.page, "due")
    answered(tab.page)
    assert [entry.content for entry in server.pipeline.turns[-1].conversation] == ["uno", "answer to uno", "due"]
    tab.page.get_by_role("button", name="Earlier version").click()
    expect(tab.page.locator(".markdown")).to_have_text(["answer to one", "answer to two"])
    expect(tab.page.locator(".versions > span")).to_have_text(["1/2"])
    reload(tab.page)
    connected(tab.page)
    expect(tab.page.locator(".markdown")).to_have_text(["answer to one", "answer to two"])
    tab.page.get_by_role("button", name="Later version").click()
    expect(tab.page.locator(".markdown")).to_have_text(["answer to uno", "answer to due"])
    expect(tab.page.get_by_role("button", name="Earlier version")).to_be_focused()


def test_the_frame_that_is_sent_names_the_parents_response(browser: Browser, server: ScriptedServer) -> None:
    """When a question is changed, when it is answered anew, and in a branch that was walked back to; the first question
    has no parent. After a reload, too."""
    with visit(browser, server.url) as tab:
        page, created = tab.page, watched(tab)

        def last() -> tuple[Any, Any]:
            """Text of the last question that was sent, and the question of the turn whose response it follows."""
            answered(page)
            questions = {turn.id: turn.conversation[-1].content for turn in server.pipeline.turns}
            assert len(created) == len(questions)
            event = created[-1]
            return event["input"], questions.get(event.get("previous_response_id", ""))

        server.pipeline.answers |= {each: Answer(text=f"answer to {each}") for each in ("one", "two", "deux", "three")}
        whole = [{"role": "user", "content": "one"}]
        ask(page, "one")
        assert last() == (whole, None)
        ask(page, "two")
        assert last() == ("two", "one")
        change(page, "two", "deux")
        assert last() == ("deux", "one")
        expect(page.locator(".versions > span")).to_have_text(["2/2"])
        page.get_by_role("article").last.get_by_role("button", name="Retry").click()
        assert last() == ("deux", "one")
        expect(page.locator(".versions > span")).to_have_text(["3/3"])
        for _ in range(2):
            page.get_by_role("button", name="Earlier version").click()
        expect(page.locator(".markdown")).to_have_text(["answer to one", "answer to two"])
        expect(page.locator(".versions > span")).to_have_text(["1/3"])
        ask(page, "three")
        assert last() == ("three", "two")
        page.get_by_role("article").first.get_by_role("button", name="Retry").click()
        assert last() == (whole, None)
        expect(page.locator(".versions > span")).to_have_text(["2/2"])
        page.get_by_role("button", name="Earlier version").click()
        reload(page)
        connected(page)
        expect(page.locator(".markdown")).to_have_text(["answer to one", "answer to two", "answer to three"])
        expect(page.locator(".versions > span")).to_have_text(["1/2", "1/3"])
        page.get_by_role("article").last.get_by_role("button", name="Retry").click()
        assert last() == ("three", "two")


def test_another_answer_stands_beside_the_first(tab: Visit, server: ScriptedServer) -> None:
    """Also of an earlier question; an attempt that said nothing is none."""
    conversation(tab, server)
    tab.page.get_by_role("button", name="Earlier version").click()
    server.pipeline.answers["two"] = Answer(text="another answer to two")
    tab.page.get_by_role("article").last.get_by_role("button", name="Retry").click()
    answered(tab.page)
    expect(tab.page.locator(".markdown")).to_have_text(["answer to one", "another answer to two"])
    expect(tab.page.locator(".versions > span")).to_have_text(["1/2", "2/2"])
    assert [entry.content for entry in server.pipeline.turns[-1].conversation] == ["one", "answer to one", "two"]
    expect(message(tab.page)).to_be_focused()
    tab.page.keyboard.press("Alt+ArrowLeft")
    expect(tab.page.locator(".markdown")).to_have_text(["answer to one", "answer to two"])
    tab.page.keyboard.press("Alt+ArrowRight")
    expect(tab.page.locator(".markdown")).to_have_text(["answer to one", "another answer to two"])
    message(tab.page).fill("some words")
    tab.page.keyboard.press("Alt+ArrowLeft")
    expect(tab.page.locator(".markdown")).to_have_text(["answer to one", "another answer to two"])


def test_a_question_is_changed_by_keys_alone(tab: Visit, server: ScriptedServer) -> None:
    """Up from the empty field; Escape leaves the question as it was; an input method's Enter does not ask."""
    ask(tab.page, "one")
    answered(tab.page)
    for _ in range(2):
        tab.page.keyboard.press("ArrowUp")
        editing = tab.page.get_by_role("textbox", name="Question")
        expect(editing).to_be_focused()
        expect(editing).to_have_value("one")
        tab.page.keyboard.press("Escape")
        expect(editing).to_have_count(0)
        expect(tab.page.get_by_role("button", name="Edit")).to_be_focused()
        message(tab.page).focus()
    tab.page.keyboard.press("ArrowUp")
    tab.page.keyboard.type(" more")
    tab.page.keyboard.press("Enter")
    answered(tab.page)
    assert [entry.content for entry in server.pipeline.turns[-1].conversation] == ["one more"]
    expect(tab.page.locator(".versions > span")).to_have_text(["2/2"])


def test_nothing_is_changed_while_an_answer_is_written(tab: Visit, server: ScriptedServer) -> None:
    server.pipeline.answers["slow"] = Answer(text="a slow answer", hold_at=4)
    ask(tab.page, "hello")
    answered(tab.page)
    ask(tab.page, "slow")
    expect(answer(tab.page)).to_have_text("a sl")
    for name in ("Edit", "Retry"):
        expect(tab.page.get_by_role("button", name=name)).to_have_count(0)
    server.release()
    answered(tab.page)
    expect(tab.page.get_by_role("button", name="Retry")).to_have_count(2)
