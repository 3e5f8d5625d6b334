"""What the chat page is for, done by keys alone: every control is reached, and the focus is never lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from gateway.errors import EngineFailed
from tests.e2e import keyboard
from tests.e2e.browser import Visit, needs_chromium, visit
from tests.e2e.keyboard import Step, walk
from tests.e2e.page import LONG, connected
from tests.e2e.scripted import Answer, ScriptedServer

pytestmark = needs_chromium

IDLE, BUSY = "#log[aria-busy=false]", "#log[aria-busy=true]"


def button(name: str) -> str:
    return f"role=button[name='{name}']"


def pressed(name: str, state: str) -> str:
    return f"{button(name)}[pressed={state}]"


ASK = Step("#message", f"{IDLE} .markdown:has-text('A short answer.')", text="question")
COMPARE = Step(button("Compare"), ".compare-form")
LEAVE = Step(button("Close"), button("Compare"))

WALKS = {
    "branches": (
        ASK,
        Step(button("Edit"), "role=textbox[name='Question']"),
        Step("", f"{IDLE} .versions:has-text('2/2')", text="another question"),
        Step(button("Earlier version"), ".versions:has-text('1/2')"),
        Step(button("Later version"), ".versions:has-text('2/2')"),
        Step("", ".versions:has-text('1/2')", keys="Alt+ArrowLeft"),
        Step("", ".versions:has-text('2/2')", keys="Alt+ArrowRight"),
        Step(button("Retry"), f"{IDLE} .versions:has-text('3/3')"),
        Step("#message", "role=textbox[name='Question']", keys="ArrowUp"),
        Step(button("Cancel"), button("Edit")),
        Step(button("Continue in a conversation of its own"), ".chats li >> nth=1"),
    ),
    "card and rating": (
        ASK,
        Step("details.route summary", "details[open] .route-facts"),
        Step("", "details.route:not([open])"),
        Step(button("Good answer"), pressed("Good answer", "true")),
        Step("", pressed("Good answer", "false")),
        Step(button("Bad answer"), "role=group[name='What is wrong with it?']"),
        Step(button("Incomplete"), pressed("Incomplete", "true")),
        Step("", pressed("Incomplete", "false"), keys="Space"),
    ),
    "comparison": (
        ASK,
        COMPARE,
        Step("role=checkbox[name='pirate']", "[value=pirate]:checked", keys="Space"),
        Step(button("Ask"), f"{IDLE} .lane >> nth=2"),
        LEAVE,
        COMPARE,
        Step(button("Ask"), button("Prefer this")),
        Step(button("Prefer this"), ".note:has-text('Preferred over')"),
    ),
    "stopping": (
        ASK._replace(text="held"),
        COMPARE,
        Step(button("Ask"), f"{BUSY} .lane .markdown:has-text('word1')"),
        Step("", f"{IDLE} .lane .note:has-text('Stopped')", keys="Escape"),
        LEAVE,
        Step("#message", f"{BUSY} .markdown:has-text('word1')", text="long"),
        Step(button("Stop"), f"{IDLE} .note:has-text('Stopped')"),
        Step(button("Retry"), f"{BUSY} .markdown:has-text('word1')"),
        Step("", f"{IDLE} .note:has-text('Stopped')", keys="Escape"),
    ),
    "conversations": (
        ASK._replace(text="apple"),
        Step("#message", "#welcome:not([hidden])", keys="ControlOrMeta+Shift+o"),
        ASK._replace(text="pear"),
        Step("role=link[name='apple']", ".question:has-text('apple')"),
        Step(button("Move to a folder: apple"), "role=combobox[name='Folder']"),
        Step("", ".chats h3:has-text('fruit')", text="fruit"),
        Step(button("Delete: apple"), "#welcome:not([hidden])"),
        Step(button("Undo"), ".question:has-text('apple')"),
        Step("#message", "dialog[open] a:has-text('pear')", keys="ControlOrMeta+k"),
        Step("dialog[open] a:has-text('pear')", ".question:has-text('pear')"),
        Step("", "dialog[open] a:has-text('pear')", keys="ControlOrMeta+k"),
        Step("", "dialog[open] .prompt:focus", keys="ArrowDown"),
        Step("", "body:not(:has(dialog[open]))", keys="Escape"),
    ),
    "failure": (
        Step("#message", button("Retry"), text="broken"),
        Step("[role=alert] [data-action=retry]", f"{IDLE} .versions:has-text('2/2')"),
    ),
    "long question": (
        ASK._replace(text="x", keys="Shift+Enter y " * 13 + "Enter"),
        Step(button("Show all"), button("Show less")),
        Step("", button("Show all")),
    ),
}
NARROW_WALKS = {
    "tabs": (
        ASK,
        COMPARE,
        Step(button("Ask"), "role=tab[selected=true]"),
        Step("role=tab[selected=true]", "[role=tab]:last-child[aria-selected=true]:focus", keys="ArrowRight"),
        Step(button("Prefer this"), ".note:has-text('Preferred over')"),
    ),
    "drawer": (
        ASK,
        Step(button("Conversations"), "#sidebar:not([hidden])"),
        Step(button("Share"), "dialog[open]"),
        Step(button("Create address"), "dialog[open] li"),
        Step("", "#share:focus", keys="Escape"),
        Step(button("Delete: question"), button("Undo")),
        Step(button("Undo"), ".question:has-text('question')"),
        Step("#message", "dialog[open] .found a", keys="ControlOrMeta+k"),
        Step("", "#message:focus", keys="Escape"),
    ),
}


def script(server: ScriptedServer) -> None:
    server.pipeline.answers |= {
        "large: held": Answer(text=LONG, hold_at=40),
        "long": Answer(text=LONG, hold_at=40),
        "broken": Answer(text="half", failure=EngineFailed("it is gone")),
        "lines": Answer(text="text\n\n" * 100 + "```python\nx = 1\n```"),
    }


@pytest.mark.parametrize("name", WALKS)
def test_a_reader_needs_no_pointer(browser: Browser, server: ScriptedServer, name: str) -> None:
    script(server)
    with visit(browser, server.url, permissions=["clipboard-write"]) as tab:
        tab.page.goto("/")
        connected(tab.page)
        walk(tab.page, *WALKS[name])


@pytest.mark.parametrize("name", NARROW_WALKS)
def test_nor_on_a_narrow_screen(browser: Browser, server: ScriptedServer, name: str) -> None:
    """Where the list of conversations lies over them, and answers stand behind tabs."""
    with visit(browser, server.url, viewport={"width": 390, "height": 800}) as tab:
        tab.page.goto("/")
        connected(tab.page)
        walk(tab.page, *NARROW_WALKS[name])


def test_the_end_is_come_to_by_keys(whole_browser: Browser, server: ScriptedServer) -> None:
    """From where the next question is written. The button that leads there goes away with that."""
    script(server)
    with visit(whole_browser, server.url) as tab:
        tab.page.goto("/")
        connected(tab.page)
        walk(
            tab.page,
            Step("#message", f"{IDLE} .code", text="lines"),
            Step(".code button", ".code button:has-text('Copied')"),
            Step("", "#jump:not([hidden])", keys="Control+Home"),
        )
        keyboard.focus(tab.page.locator("#jump"), "Shift+Tab")
        walk(tab.page, Step("", "#jump[hidden]"))


@pytest.mark.parametrize(
    ("way", "then"),
    [
        ("Leave them out", f"{IDLE} .omitted"),
        ("Summarise them", f"{IDLE} .markdown >> nth=3"),
        ("Start anew", "#welcome:not([hidden])"),
    ],
)
def test_a_full_context_is_left_by_keys(tab: Visit, server: ScriptedServer, way: str, then: str) -> None:
    walk(tab.page, ASK, ASK._replace(text="two", then=f"{IDLE} .markdown >> nth=1"))
    server.pipeline.room = 3
    walk(tab.page, Step("#message", button(way), text="three"))
    server.pipeline.room = 5
    walk(tab.page, Step(button(way), then))


def saved(page: Page, selector: str, file: Path) -> None:
    """Have the page save what it has."""
    with page.expect_download() as saving:
        keyboard.press(page.locator(selector))
    saving.value.save_as(file)


def test_files_are_saved_and_read_by_keys(tab: Visit, tmp_path: Path) -> None:
    """Which ones are read is chosen in a window of the system."""
    walk(tab.page, ASK)
    saved(tab.page, "#markdown", tmp_path / "question.md")
    assert "A short answer." in (tmp_path / "question.md").read_text("utf-8")
    saved(tab.page, "#export", tmp_path / "all.json")
    walk(tab.page, Step(button("Delete: question"), button("Undo")))
    with tab.page.expect_file_chooser() as chooser:
        keyboard.press(tab.page.locator("#import"))
    chooser.value.set_files(tmp_path / "all.json")
    expect(tab.page.locator("#told")).to_have_text("One conversation was imported.")
    walk(tab.page, Step("role=link[name='question']", ".question:has-text('question')"))


def test_a_long_paste_is_taken_back_by_keys(browser: Browser, server: ScriptedServer) -> None:
    with visit(browser, server.url, permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.page.goto("/")
        connected(tab.page)
        tab.page.evaluate("navigator.clipboard.writeText('y'.repeat(4001))")
        walk(
            tab.page,
            Step("#message", button("Paste as text"), keys="ControlOrMeta+v"),
            Step(button("Paste as text"), "#chips[hidden]"),
            Step("#message", button("Remove Pasted text"), keys="ControlOrMeta+a ControlOrMeta+v"),
            Step(button("Remove Pasted text"), "#chips[hidden]"),
        )
