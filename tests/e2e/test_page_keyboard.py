"""Keys that work everywhere on the chat page: the list of them, and finding conversations and actions."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.e2e.browser import Visit, needs_chromium, violations, visit
from tests.e2e.keyboard import focus
from tests.e2e.page import answer, answered, ask, connected, message
from tests.e2e.scripted import Answer, ScriptedServer
from tests.e2e.test_page_history import fill, listed

pytestmark = needs_chromium

FIND = "ControlOrMeta+k"


def keys(page: Page) -> Locator:
    return page.get_by_role("dialog", name="Keyboard shortcuts")


def find(page: Page, words: str = "") -> Locator:
    """The dialog that finds, opened by its keys, with words written into it."""
    page.keyboard.press(FIND)
    dialog = page.get_by_role("dialog", name="Find")
    expect(dialog.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type(words)
    return dialog


def results(dialog: Locator, group: str) -> Locator:
    """What is found, under a heading."""
    return dialog.locator(f"h3:text-is('{group}') + ul > li")


def leave_fields(page: Page) -> Locator:
    """Go on to something that takes no text."""
    button = page.get_by_role("button", name="New chat")
    focus(button)
    return button


def test_a_question_mark_lists_the_keys(tab: Visit) -> None:
    """Over the page, which nothing reaches meanwhile; Escape leads back to where the reader was."""
    button = leave_fields(tab.page)
    tab.page.keyboard.press("?")
    dialog = keys(tab.page)
    expect(dialog).to_be_visible()
    rows = "rows => rows.map((row) => [...row.children].map(({ textContent }) => textContent))"
    listed = dict(dialog.locator("dl > div").evaluate_all(rows))
    for pressed, does in (("Ctrl K", "finds"), ("Ctrl Shift O", "new chat"), ("Esc", "stops"), ("/", "prompts")):
        assert does in listed[pressed]
    assert violations(tab.page) == []
    for _ in range(4):
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.closest('nav, header, main, footer')") is None
    tab.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(button).to_be_focused()


def test_a_question_mark_in_a_field_is_written(tab: Visit) -> None:
    for field in (message(tab.page), tab.page.get_by_role("searchbox", name="Search conversations")):
        field.focus()
        tab.page.keyboard.type("why?")
        expect(field).to_have_value("why?")
    expect(tab.page.get_by_role("dialog")).to_have_count(0)


def test_a_question_mark_can_be_kept_from_opening_the_list(tab: Visit) -> None:
    """Some software types what it hears. The list is found by its name then, and the choice stays."""
    find(tab.page, "shortcuts")
    tab.page.keyboard.press("Enter")
    choice = keys(tab.page).get_by_role("checkbox", name="A question mark opens this list")
    choice.press("Space")
    expect(choice).not_to_be_checked()
    tab.page.keyboard.press("Escape")
    tab.page.reload()
    connected(tab.page)
    leave_fields(tab.page)
    tab.page.keyboard.press("?")
    find(tab.page, "shortcuts")
    tab.page.keyboard.press("Enter")
    expect(choice).not_to_be_checked()
    choice.press("Space")
    tab.page.keyboard.press("Escape")
    leave_fields(tab.page)
    tab.page.keyboard.press("?")
    expect(choice).to_be_checked()


def test_a_conversation_is_found_from_where_one_writes(tab: Visit, server: ScriptedServer) -> None:
    """By a word of an answer; Enter goes to it, although what is shown is of fewer words still."""
    server.pipeline.answers |= {"one": Answer(text="about harbours"), "two": Answer(text="about ships")}
    fill(tab, "one", "two")
    message(tab.page).focus()
    tab.page.keyboard.type("a draft")
    dialog = find(tab.page)
    expect(results(dialog, "Conversations")).to_have_text(["two", "one"])
    assert violations(tab.page) == []
    tab.page.keyboard.type("HARBOUR")
    tab.page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(answer(tab.page)).to_have_text("about harbours")
    expect(message(tab.page)).to_be_focused()
    expect(message(tab.page)).to_have_value("a draft")


def test_arrows_walk_through_what_is_found(tab: Visit) -> None:
    """And stay at the last of it."""
    fill(tab, "one", "two")
    dialog = find(tab.page)
    expect(results(dialog, "Conversations")).to_have_text(["two", "one"])
    for _ in range(results(dialog, "Actions").count() + 2):
        tab.page.keyboard.press("ArrowDown")
    expect(dialog.get_by_role("link", name="one")).to_be_focused()
    tab.page.keyboard.press("ArrowDown")
    expect(dialog.get_by_role("link", name="one")).to_be_focused()
    tab.page.keyboard.press("ArrowUp")
    expect(dialog.get_by_role("link", name="two")).to_be_focused()
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(tab.page.locator(".question p")).to_have_text(["one"])


def test_actions_are_found_by_their_names(tab: Visit) -> None:
    """One that opens a dialog, one that changes the page; the focus comes back."""
    message(tab.page).focus()
    dialog = find(tab.page, "setti")
    expect(results(dialog, "Actions")).to_have_text(["Settings"])
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("dialog", name="Settings of this conversation")).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(message(tab.page)).to_be_focused()
    find(tab.page, "switch dark")
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("button", name="Switch to light")).to_be_visible()
    expect(message(tab.page)).to_be_focused()


def test_what_is_not_there_is_said(tab: Visit) -> None:
    """A button that the page hides is not offered either."""
    tab.page.locator("#share").evaluate("button => { button.hidden = true; }")
    dialog = find(tab.page, "share this conversation")
    expect(dialog.get_by_role("status")).to_have_text("Nothing found.")
    assert violations(tab.page) == []
    tab.page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(message(tab.page)).to_be_focused()


def test_a_new_chat_is_begun_by_keys(tab: Visit) -> None:
    fill(tab, "one")
    tab.page.keyboard.press("ControlOrMeta+Shift+o")
    expect(tab.page.get_by_role("heading", name="What can I answer for you?")).to_be_visible()
    expect(message(tab.page)).to_be_focused()
    expect(listed(tab.page)).to_have_text(["one"])


def test_keys_belong_to_the_dialog_that_is_open(tab: Visit) -> None:
    fill(tab, "one")
    tab.page.get_by_role("button", name="Settings", exact=True).press("Enter")
    settings = tab.page.get_by_role("dialog", name="Settings of this conversation")
    settings.get_by_role("button", name="Cancel").focus()
    for pressed in (FIND, "?", "ControlOrMeta+Shift+o"):
        tab.page.keyboard.press(pressed)
    expect(tab.page.locator("dialog[open]")).to_have_count(1)
    expect(settings).to_be_visible()
    expect(tab.page.locator(".question p")).to_have_text(["one"])


def test_dialogs_are_loaded_when_they_are_opened(browser: Browser, server: ScriptedServer) -> None:
    """And the page says so if they cannot be had."""
    with visit(browser, server.url) as tab:
        asked: list[str] = []
        tab.page.on("request", lambda request: asked.append(request.url))
        tab.page.route("**/js/find-dialog.js", lambda route: route.abort())
        tab.page.goto("/")
        connected(tab.page)
        ask(tab.page, "hello")
        answered(tab.page)
        assert [url for url in asked if re.search("(find|keys)-dialog", url)] == []
        tab.page.keyboard.press(FIND)
        expect(tab.page.locator("#told")).to_have_text("The server cannot be reached.")
        leave_fields(tab.page)
        tab.page.keyboard.press("?")
        expect(keys(tab.page)).to_be_visible()


@pytest.mark.parametrize("width", [320, 1280])
def test_dialogs_are_not_wider_than_the_screen(browser: Browser, server: ScriptedServer, width: int) -> None:
    with visit(browser, server.url, viewport={"width": width, "height": 600}) as tab:
        tab.page.goto("/")
        connected(tab.page)
        ask(tab.page, "unbreakable" * 40)
        answered(tab.page)

        def fits(dialog: Locator) -> None:
            box = dialog.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
            assert dialog.evaluate("dialog => dialog.scrollWidth - dialog.clientWidth") <= 0

        dialog = find(tab.page)
        expect(results(dialog, "Conversations")).to_have_count(1)
        fits(dialog)
        dialog.get_by_role("button", name="Keyboard shortcuts").press("Enter")
        expect(keys(tab.page)).to_be_visible()
        fits(keys(tab.page))


def test_on_a_mac_the_command_key_stands_for_control(browser: Browser, server: ScriptedServer) -> None:
    """Control moves through texts there."""
    mac = "Object.defineProperty(Navigator.prototype, 'platform', { get: () => 'MacIntel' });"
    with visit(browser, server.url) as tab, tab.page.add_init_script(mac):
        tab.page.goto("/")
        connected(tab.page)
        tab.page.keyboard.press("Control+k")
        with tab.page.expect_request("**/js/find-dialog.js"):
            tab.page.keyboard.press("Meta+k")
        expect(tab.page.get_by_role("searchbox", name="Conversations and actions")).to_be_focused()
        tab.page.keyboard.type("shortcuts")
        tab.page.keyboard.press("Enter")
        expect(keys(tab.page).locator("dt").first).to_have_text("⌘ K")
