"""Text files that go with a question: dropped, picked, pasted; refused where they are no text."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import Visit, needs_chromium, visit
from tests.e2e.page import answered, ask, connected, message, reload
from tests.e2e.scripted import ScriptedServer

pytestmark = needs_chromium

DROP = """(target, files) => {
  const dataTransfer = new DataTransfer();
  for (const [name, bytes] of files) dataTransfer.items.add(new File([new Uint8Array(bytes)], name));
  for (const type of ["dragover", "drop"]) {
    target.dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
  }
}"""

PASTE = """(target, text) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  const event = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
  if (target.dispatchEvent(event)) target.setRangeText(text, target.selectionStart, target.selectionEnd, "end");
}"""


def drop(page: Page, **files: bytes) -> None:
    page.locator("#log").evaluate(DROP, [[name.replace("_", "."), list(content)] for name, content in files.items()])


def chips(page: Page) -> Any:
    return page.get_by_role("list", name="Attached").get_by_role("listitem")


def test_dropped_files_go_with_the_question(tab: Visit, server: ScriptedServer) -> None:
    """As parts of their own, with their names; what is no text is refused in a sentence. They stay with the turn."""
    page = tab.page
    drop(page, a_txt=b"alpha beta", b_md="Grüße".encode(), c_csv=b"1,2", d_png=b"\x89PNG\0", e_bin=b"nul\0nul")
    expect(chips(page).locator(".name")).to_have_text(["a.txt", "b.md", "c.csv"])
    # The server counts a word as a token.
    expect(chips(page).first).to_contain_text("2 tokens")
    refusal = page.get_by_role("alert")
    expect(refusal).to_have_text(
        "d.png is no text in UTF-8, and only such files can be attached. "
        "e.bin is no text in UTF-8, and only such files can be attached."
    )
    ask(page, "Compare them.")
    answered(page)
    expect(chips(page)).to_have_count(0)
    expect(refusal).to_be_hidden()
    files = {"a.txt": "alpha beta", "b.md": "Grüße", "c.csv": "1,2"}
    sent = "\n".join([*(f'<file name="{name}">\n{text}\n</file>' for name, text in files.items()), "Compare them."])
    assert [entry.content for entry in server.pipeline.turns[0].conversation] == [sent]
    shown = page.get_by_role("article").locator("details.attached")
    expect(shown.locator("summary")).to_have_text([*files])
    shown.first.locator("summary").click()
    expect(shown.first.locator("pre")).to_have_text("alpha beta")
    ask(page, "Which is longer?")
    answered(page)
    second = server.pipeline.turns[1]
    assert [entry.content for entry in second.request.messages] == ["Which is longer?"]
    reload(page)
    connected(page)
    first = page.get_by_role("article").first
    first.get_by_role("button", name="Retry").click()
    answered(page)
    assert [entry.content for entry in server.pipeline.turns[2].conversation] == [sent]
    expect(page.get_by_role("article").locator("details.attached")).to_have_count(3)


def test_a_changed_question_keeps_its_files(tab: Visit, server: ScriptedServer) -> None:
    """Also one that follows another."""
    ask(tab.page, "hello")
    answered(tab.page)
    drop(tab.page, a_txt=b"alpha")
    expect(chips(tab.page)).to_have_count(1)
    ask(tab.page, "What is it?")
    answered(tab.page)
    tab.page.keyboard.press("ArrowUp")
    tab.page.get_by_role("textbox", name="Question").fill("What is it not?")
    tab.page.keyboard.press("Enter")
    answered(tab.page)
    file = '<file name="a.txt">\nalpha\n</file>\n'
    questions = [[entry.content for entry in turn.request.messages] for turn in server.pipeline.turns[1:]]
    assert questions == [[f"{file}What is it?"], [f"{file}What is it not?"]]


def test_what_is_attached_outlives_a_reload(tab: Visit, server: ScriptedServer) -> None:
    """With the text that it goes with, and until it is sent."""
    page = tab.page
    drop(page, a_txt=b"alpha", b_txt=b"beta")
    expect(chips(page)).to_have_count(2)
    message(page).fill("What is it?")
    page.reload()
    connected(page)
    expect(chips(page).locator(".name")).to_have_text(["a.txt", "b.txt"])
    message(page).press("Enter")
    answered(page)
    [sent] = [entry.content for entry in server.pipeline.turns[0].conversation]
    assert sent == '<file name="a.txt">\nalpha\n</file>\n<file name="b.txt">\nbeta\n</file>\nWhat is it?'
    page.reload()
    connected(page)
    expect(chips(page)).to_have_count(0)


def test_where_there_is_no_room_for_a_draft_it_is_sent_all_the_same(tab: Visit, server: ScriptedServer) -> None:
    """The browser takes some megabytes, and attachments may fill them."""
    page = tab.page
    page.evaluate("void (Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); })")
    drop(page, a_txt=b"alpha")
    expect(chips(page)).to_have_count(1)
    page.get_by_role("button", name="Remove a.txt").click()
    message(page).press_sequentially("hello")
    page.get_by_role("button", name="Send").click()
    answered(page)
    assert [turn.conversation[-1].content for turn in server.pipeline.turns] == ["hello"]


def test_files_are_picked_and_taken_away(tab: Visit, server: ScriptedServer) -> None:
    """By keys alone; a file needs no question beside it."""
    pick = tab.page.get_by_label("Attach text files")
    send = tab.page.get_by_role("button", name="Send")
    pick.focus()
    expect(pick).to_be_focused()
    pick.set_input_files(
        [
            {"name": "a.txt", "mimeType": "text/plain", "buffer": b"alpha"},
            {"name": "b.txt", "mimeType": "text/plain", "buffer": b"b" * 1_000_001},
        ]
    )
    expect(chips(tab.page)).to_have_count(1)
    expect(tab.page.get_by_role("alert")).to_have_text("b.txt is larger than 1 MB, the most that can be attached.")
    expect(send).to_be_enabled()
    tab.page.get_by_role("button", name="Remove a.txt").press("Enter")
    expect(chips(tab.page)).to_have_count(0)
    expect(message(tab.page)).to_be_focused()
    expect(send).to_be_disabled()
    pick.set_input_files([{"name": "c.txt", "mimeType": "text/plain", "buffer": b"gamma"}])
    expect(send).to_be_enabled()
    message(tab.page).press("Enter")
    answered(tab.page)
    assert [entry.content for entry in server.pipeline.turns[0].conversation] == ['<file name="c.txt">\ngamma\n</file>']
    expect(tab.page.get_by_role("navigation", name="Conversations").get_by_role("link")).to_have_text(["c.txt"])


def test_a_long_paste_becomes_a_file_and_a_text_again(tab: Visit, server: ScriptedServer) -> None:
    """4,000 characters are still a text."""
    field = message(tab.page)
    field.fill("before ")
    field.evaluate(PASTE, "x" * 4000)
    expect(field).to_have_value("before " + "x" * 4000)
    field.fill("before ")
    for text in ("y" * 4001, "z" * 300_000):
        field.evaluate(PASTE, text)
    expect(field).to_have_value("before ")
    expect(chips(tab.page).locator(".name")).to_have_text(["Pasted text", "Pasted text 2"])
    chips(tab.page).first.get_by_role("button", name="Paste as text").click()
    expect(field).to_have_value("before " + "y" * 4001)
    expect(field).to_be_focused()
    expect(chips(tab.page).locator(".name")).to_have_text(["Pasted text 2"])
    field.press("Enter")
    answered(tab.page)
    [sent] = [entry.content for entry in server.pipeline.turns[0].conversation]
    assert sent == f'<file name="Pasted text 2">\n{"z" * 300_000}\n</file>\nbefore {"y" * 4001}'


def test_tokens_that_the_server_does_not_count_are_estimated(tab: Visit) -> None:
    """And the chip says so."""
    tab.page.route("**/v1/responses/input_tokens", lambda route: route.fulfill(status=500, json={}))
    with tab.page.expect_response("**/v1/responses/input_tokens"):
        drop(tab.page, a_txt=b"a" * 4100)
    expect(chips(tab.page)).to_contain_text("1,025 tokens, estimated")


@pytest.mark.parametrize("width", [320, 1280])
def test_chips_are_not_wider_than_the_screen(browser: Browser, server: ScriptedServer, width: int) -> None:
    with visit(browser, server.url, viewport={"width": width, "height": 700}) as tab:
        tab.page.goto("/")
        connected(tab.page)
        name = "unbreakable" * 12
        drop(tab.page, **{f"{name}_txt": b"alpha", "b_png": b"\0"})
        expect(chips(tab.page)).to_have_count(1)
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        ask(tab.page, "hello")
        answered(tab.page)
        assert tab.page.evaluate("document.querySelector('#scroller').scrollWidth") <= width
        for button in ("Settings", "Prompts", "Send"):
            box = tab.page.get_by_role("button", name=button).bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width, button
