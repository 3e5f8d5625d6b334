"""Conversations that the browser keeps: left and found again, shared by tabs, brought back, moved by file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import Visit, needs_chromium, visit
from tests.e2e.page import answer, answered, ask, connected, message, reload
from tests.e2e.scripted import Answer, ScriptedServer

pytestmark = needs_chromium


def listed(page: Page) -> Any:
    """The links to conversations."""
    return page.get_by_role("navigation", name="Conversations").get_by_role("link")


def new_chat(page: Page) -> None:
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_role("heading", name="What can I answer for you?")).to_be_visible()


def exported(page: Page, folder: Path) -> dict[str, Any]:
    with page.expect_download() as saving:
        page.get_by_role("button", name="Export").click()
    saving.value.save_as(folder / "export.json")
    found: dict[str, Any] = json.loads((folder / "export.json").read_text("utf-8"))
    return found


def fill(tab: Visit, *questions: str) -> None:
    """A conversation of one turn for each question."""
    for question in questions:
        new_chat(tab.page)
        ask(tab.page, question)
        answered(tab.page)


def test_new_chat_deletes_nothing(tab: Visit, server: ScriptedServer) -> None:
    """Not even the answer under way, which goes on while another conversation is shown."""
    server.pipeline.answers["long"] = Answer(text="a long answer", hold_at=4)
    ask(tab.page, "long")
    expect(answer(tab.page)).to_have_text("a lo")
    new_chat(tab.page)
    server.pipeline.answers["hello"] = Answer(text="hi")
    ask(tab.page, "hello")
    answered(tab.page)
    assert [entry.content for entry in server.pipeline.turns[1].conversation] == ["hello"]
    server.release()
    expect(listed(tab.page)).to_have_text(["long", "hello"])
    listed(tab.page).filter(has_text="long").click()
    expect(answer(tab.page)).to_have_text("a long answer")
    answered(tab.page)
    assert not server.pipeline.turns[0].cancelled
    tab.page.go_back()
    expect(answer(tab.page)).to_have_text("hi")


def test_all_tabs_closed_and_opened_again(tab: Visit, server: ScriptedServer) -> None:
    """Conversation, branch and title are there; the address leads to it, also in another tab."""
    server.pipeline.answers |= {"one": Answer(text="first"), "uno": Answer(text="second")}
    ask(tab.page, "one")
    answered(tab.page)
    tab.page.keyboard.press("ArrowUp")
    tab.page.get_by_role("textbox", name="Question").fill("uno")
    tab.page.keyboard.press("Enter")
    answered(tab.page)
    tab.page.get_by_role("button", name="Earlier version").click()
    tab.page.get_by_role("button", name="Rename: one").click()
    tab.page.get_by_role("textbox", name="Title").fill("Numbers")
    tab.page.keyboard.press("Enter")
    expect(listed(tab.page)).to_have_text(["Numbers"])
    address = tab.page.url
    tab.page.close()
    for start in ("/", address):
        page = tab.context.new_page()
        page.goto(start)
        connected(page)
        listed(page).filter(has_text="Numbers").click()
        expect(answer(page)).to_have_text("first")
        expect(page.locator(".versions > span")).to_have_text(["1/2"])
        assert page.url == address
        page.close()


def test_tabs_share_what_is_asked(tab: Visit, server: ScriptedServer) -> None:
    """A turn of one tab appears in the other, which goes on from there; nothing of either is lost."""
    ask(tab.page, "one")
    answered(tab.page)
    other = tab.context.new_page()
    other.goto(tab.page.url)
    connected(other)
    ask(other, "two")
    answered(other)
    expect(tab.page.locator(".question p")).to_have_text(["one", "two"])
    ask(tab.page, "three")
    answered(tab.page)
    expect(other.locator(".question p")).to_have_text(["one", "two", "three"])
    other.get_by_role("article").last.get_by_role("button", name="Retry").click()
    answered(other)
    expect(tab.page.locator(".versions > span")).to_have_text(["1/2"])
    assert [entry.content for entry in server.pipeline.turns[-1].conversation][::2] == ["one", "two", "three"]


def test_deleted_and_undone(tab: Visit, server: ScriptedServer, tmp_path: Path) -> None:
    fill(tab, "apple", "pear")
    before = exported(tab.page, tmp_path)
    tab.page.get_by_role("button", name="Delete: pear").click()
    expect(listed(tab.page)).to_have_text(["apple"])
    expect(tab.page.get_by_role("heading", name="What can I answer for you?")).to_be_visible()
    undo = tab.page.get_by_role("button", name="Undo")
    expect(undo).to_be_focused()
    undo.click()
    expect(listed(tab.page)).to_have_text(["pear", "apple"])
    expect(answer(tab.page)).to_have_text("A short answer.")
    assert exported(tab.page, tmp_path) == before


def test_a_deleted_conversation_stays_deleted_when_its_answer_ends(tab: Visit, server: ScriptedServer) -> None:
    """The answer is stopped, also one that is not shown."""
    server.pipeline.answers["long"] = Answer(text="a long answer", hold_at=4)
    ask(tab.page, "long")
    expect(answer(tab.page)).to_have_text("a lo")
    new_chat(tab.page)
    tab.page.get_by_role("button", name="Delete: long").click()
    expect(listed(tab.page)).to_have_count(0)
    ask(tab.page, "hello")
    answered(tab.page)
    expect(listed(tab.page)).to_have_text(["hello"])
    assert server.pipeline.turns[0].cancelled


def test_found_by_words_of_title_and_text(tab: Visit, server: ScriptedServer) -> None:
    """By keys alone."""
    server.pipeline.answers["fruit"] = Answer(text="Bananas are *berries*.")
    fill(tab, "fruit", "vegetables", "bread")
    search = tab.page.get_by_role("searchbox", name="Search conversations")
    search.focus()
    tab.page.keyboard.type("BREAD")
    expect(listed(tab.page)).to_have_text(["bread"])
    tab.page.keyboard.press("Control+a")
    tab.page.keyboard.type("fruit berries")
    expect(listed(tab.page)).to_have_text(["fruit"])
    tab.page.keyboard.press("Tab")
    expect(listed(tab.page)).to_be_focused()
    tab.page.keyboard.press("Enter")
    expect(answer(tab.page)).to_have_text("Bananas are berries.")
    search.fill("nothing like it")
    expect(tab.page.get_by_text("Nothing found.")).to_be_visible()


def test_a_pinned_one_comes_first(tab: Visit) -> None:
    fill(tab, "apple", "pear")
    expect(listed(tab.page)).to_have_text(["pear", "apple"])
    tab.page.get_by_role("button", name="Pin: apple").click()
    expect(listed(tab.page)).to_have_text(["apple", "pear"])
    expect(tab.page.get_by_role("heading", name="Pinned")).to_be_visible()


def test_exported_and_imported_elsewhere(tab: Visit, browser: Browser, server: ScriptedServer, tmp_path: Path) -> None:
    """Equal trees in a fresh profile; importing twice changes nothing; what is no export is refused in a sentence."""
    fill(tab, "apple", "pear")
    tab.page.keyboard.press("ArrowUp")
    tab.page.get_by_role("textbox", name="Question").fill("plum")
    tab.page.keyboard.press("Enter")
    answered(tab.page)
    before = exported(tab.page, tmp_path)
    twice = before["conversations"][0] | {"turns": 2 * before["conversations"][0]["turns"]}
    with visit(browser, server.url) as fresh:
        fresh.page.goto("/")
        for _ in range(2):
            fresh.page.get_by_label("Import").set_input_files(tmp_path / "export.json")
            expect(fresh.page.locator("#told")).to_have_text("2 conversations were imported.")
            assert exported(fresh.page, tmp_path) == before
        for name, text, told in (
            ("other.json", '{"conversations": []}', "not exported by this page"),
            ("text.json", "no", "no JSON"),
            ("broken.json", json.dumps(before | {"conversations": [{"id": 7}]}), "cannot be read: id is number"),
            ("elsewhere.json", json.dumps(before | {"conversations": [{"id": "a/b"}]}), "cannot be read: id is not"),
            ("twice.json", json.dumps(before | {"conversations": [twice]}), "turns of a conversation have the same id"),
        ):
            (tmp_path / name).write_text(text)
            fresh.page.get_by_label("Import").set_input_files(tmp_path / name)
            expect(fresh.page.locator("#told")).to_contain_text(told)
        assert exported(fresh.page, tmp_path) == before


def test_conversations_with_the_same_ids_of_turns_are_shown_each_with_its_own(
    tab: Visit, server: ScriptedServer, tmp_path: Path
) -> None:
    """As when a file holds a conversation and what was made of a copy of it, its order changed too."""
    for question in ("one", "two"):
        server.pipeline.answers[question] = Answer(text=f"answer to {question}")
        ask(tab.page, question)
        answered(tab.page)
    export = exported(tab.page, tmp_path)
    [first] = export["conversations"]
    begin, end = (turn["id"] for turn in first["turns"])
    copies = [
        turn | {"question": f"{turn['question']} of the copy", "text": f"{turn['text']} of the copy"}
        for turn in first["turns"]
    ]
    turns = [copies[1] | {"parent": None}, copies[0] | {"parent": end}]
    copy = first | {"id": "copy", "title": "Copy", "turns": turns, "leaf": begin}
    (tmp_path / "copy.json").write_text(json.dumps(export | {"conversations": [copy]}))
    tab.page.get_by_label("Import").set_input_files(tmp_path / "copy.json")
    expect(listed(tab.page)).to_have_count(2)
    shown = {"Copy": ["two of the copy", "one of the copy"], "one": ["one", "two"]}
    for title in ("Copy", "one", "Copy"):
        listed(tab.page).filter(has_text=title).click()
        expect(tab.page.locator(".question p")).to_have_text(shown[title])
        expect(tab.page.locator(".markdown")).to_have_text([f"answer to {question}" for question in shown[title]])


def test_what_the_browser_has_no_room_for_is_said(tab: Visit) -> None:
    """And what was kept before stays."""
    fill(tab, "one")
    tab.page.evaluate(
        "void (IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError'); })"
    )
    fill(tab, "two")
    expect(tab.page.locator("#kept")).to_have_text(
        "This browser could not keep the last change. It may have no room for it."
    )
    expect(listed(tab.page)).to_have_text(["one"])


def test_a_temporary_chat_is_kept_nowhere(tab: Visit, server: ScriptedServer) -> None:
    """Neither here nor on the server, which is told the whole conversation each time."""
    tab.page.get_by_role("button", name="Temporary chat").click()
    for question in ("one", "two"):
        ask(tab.page, question)
        answered(tab.page)
    assert [turn.request.store for turn in server.pipeline.turns] == [False, False]
    assert [entry.content for entry in server.pipeline.turns[-1].conversation] == ["one", "A short answer.", "two"]
    expect(tab.page.get_by_text("No conversations yet.")).to_be_visible()
    assert "#" not in tab.page.url
    kept = """() => new Promise((resolve) => {
      indexedDB.open("roundhouse").onsuccess = ({ target: { result: database } }) => {
        const names = [...database.objectStoreNames];
        const counts = names.map((name) => database.transaction(name).objectStore(name).count());
        counts.at(-1).onsuccess = () => resolve(counts.map(({ result }) => result));
      };
    })"""
    assert tab.page.evaluate(kept) == [0, 0]
    reload(tab.page)
    expect(tab.page.get_by_role("heading", name="What can I answer for you?")).to_be_visible()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_list_is_beside_or_over_the_conversation(browser: Browser, server: ScriptedServer, width: int) -> None:
    """On a narrow screen it comes when it is asked for, and goes when something else is."""
    with visit(browser, server.url, viewport={"width": width, "height": 800}) as tab:
        tab.page.goto("/")
        connected(tab.page)
        sidebar = tab.page.get_by_role("navigation", name="Conversations")
        toggle = tab.page.get_by_role("button", name="Conversations", exact=True)
        if width == 390:
            expect(sidebar).to_be_hidden()
            toggle.click()
            expect(sidebar).to_be_visible()
            tab.page.keyboard.press("Escape")
            expect(toggle).to_be_focused()
        else:
            expect(sidebar).to_be_visible()
            toggle.click()
            tab.page.reload()
            connected(tab.page)
        expect(sidebar).to_be_hidden()
        message(tab.page).fill("hello")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


def test_closing_the_list_over_the_conversation_stops_no_answer(browser: Browser, server: ScriptedServer) -> None:
    """One Escape does one thing."""
    server.pipeline.answers["long"] = Answer(text="a long answer", hold_at=4)
    with visit(browser, server.url, viewport={"width": 390, "height": 800}) as tab:
        tab.page.goto("/")
        ask(tab.page, "long")
        expect(answer(tab.page)).to_have_text("a lo")
        tab.page.get_by_role("button", name="Conversations", exact=True).click()
        tab.page.keyboard.press("Escape")
        expect(tab.page.get_by_role("navigation", name="Conversations")).to_be_hidden()
        server.release()
        answered(tab.page)
        expect(answer(tab.page)).to_have_text("a long answer")


def test_a_title_is_changed_in_the_list_over_the_conversation(browser: Browser, server: ScriptedServer) -> None:
    """On a narrow screen, where the list goes when something beside it is pressed."""
    with visit(browser, server.url, viewport={"width": 390, "height": 800}) as tab:
        tab.page.goto("/")
        ask(tab.page, "one")
        answered(tab.page)
        tab.page.get_by_role("button", name="Conversations", exact=True).click()
        tab.page.get_by_role("button", name="Rename: one").click()
        tab.page.get_by_role("textbox", name="Title").fill("Numbers")
        tab.page.keyboard.press("Enter")
        expect(listed(tab.page)).to_have_text(["Numbers"])
        expect(listed(tab.page)).to_be_focused()
