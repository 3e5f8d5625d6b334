"""The library of prompts on the chat page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.e2e.browser import Visit, needs_chromium, visit
from tests.e2e.page import answered, connected, give_key, message
from tests.e2e.scripted import ScriptedServer
from tests.gateway.people import CHATS

pytestmark = needs_chromium

SHARE = "Share with everybody of your organisation"


@contextlib.contextmanager
def person(browser: Browser, server: ScriptedServer, name: str, *, admin: bool = False) -> Iterator[Page]:
    """The page, as a user has it."""
    key = server.key_of(name, (*CHATS, "admin:write") if admin else CHATS)
    with visit(browser, server.url) as tab:
        give_key(tab.page, key)
        tab.page.goto("/")
        connected(tab.page)
        yield tab.page


def names(dialog: Any) -> Any:
    return dialog.get_by_role("listitem").locator("strong")


def library(page: Page) -> Any:
    """The library, opened by a slash."""
    message(page).press("/")
    dialog = page.get_by_role("dialog", name="Prompts")
    expect(dialog.get_by_role("searchbox")).to_be_focused()
    return dialog


def write(page: Page, name: str, text: str) -> None:
    dialog = library(page)
    dialog.get_by_role("button", name="New prompt").click()
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_label("Text").fill(text)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("Escape")
    expect(message(page)).to_have_value("/")
    message(page).fill("")


def test_a_prompt_asks_for_its_variables(tab: Visit, server: ScriptedServer) -> None:
    """Found by its words, by keys alone, also after a reload."""
    write(tab.page, "Translate", "Translate into {{ language }}: {{text}}! In {{language}}, please.")
    write(tab.page, "Summarise", "Summarise this.")
    tab.page.reload()
    connected(tab.page)
    dialog = library(tab.page)
    expect(dialog.get_by_role("listitem").locator("strong")).to_have_text(["Summarise", "Translate"])
    tab.page.keyboard.type("INTO transl")
    expect(dialog.get_by_role("listitem").locator("strong")).to_have_text(["Translate"])
    tab.page.keyboard.press("Enter")
    expect(dialog.get_by_label("language")).to_be_focused()
    tab.page.keyboard.type("Greek")
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.type("cost: $1 & $&")
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("Enter")
    expect(message(tab.page)).to_be_focused()
    expect(message(tab.page)).to_have_value("Translate into Greek: cost: $1 & $&! In Greek, please.")
    tab.page.keyboard.press("Enter")
    answered(tab.page)
    [asked] = server.pipeline.turns[0].conversation
    assert asked.content == "Translate into Greek: cost: $1 & $&! In Greek, please."


def test_a_prompt_without_variables_is_put_where_the_text_is(tab: Visit) -> None:
    """The button opens the library beside a text that has begun."""
    write(tab.page, "Short", "Be brief.")
    message(tab.page).fill("Hello. ")
    tab.page.get_by_role("button", name="Prompts").click()
    tab.page.get_by_role("dialog", name="Prompts").get_by_role("button", name="Short Be brief.").click()
    expect(message(tab.page)).to_have_value("Hello. Be brief.")
    expect(message(tab.page)).to_be_focused()


def test_a_slash_can_be_written(tab: Visit) -> None:
    """Leaving the library gives it; inside a text it opens nothing."""
    library(tab.page)
    tab.page.keyboard.press("Escape")
    expect(message(tab.page)).to_have_value("/")
    expect(message(tab.page)).to_be_focused()
    tab.page.keyboard.type("etc/hosts")
    expect(message(tab.page)).to_have_value("/etc/hosts")


def test_prompts_are_changed_and_deleted(tab: Visit) -> None:
    write(tab.page, "Short", "Be brief.")
    dialog = library(tab.page)
    dialog.get_by_role("button", name="Change: Short").click()
    expect(dialog.get_by_label("Text")).to_have_value("Be brief.")
    dialog.get_by_label("Name").fill("Brief")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("listitem").locator("strong")).to_have_text(["Brief"])
    dialog.get_by_role("button", name="Delete: Brief").click()
    expect(dialog.get_by_text("No prompts yet.")).to_be_visible()
    expect(dialog.get_by_role("searchbox")).to_be_focused()


def test_a_new_prompt_overwrites_none(tab: Visit) -> None:
    """Of the same name."""
    write(tab.page, "Short", "Be brief.")
    dialog = library(tab.page)
    dialog.get_by_role("button", name="New prompt").click()
    dialog.get_by_label("Name").fill("Short")
    dialog.get_by_label("Text").fill("Be very brief.")
    dialog.get_by_role("button", name="Save").click()
    tab.page.wait_for_function("document.querySelector('dialog[open] input').validationMessage !== ''")
    dialog.get_by_label("Name").fill("Shorter")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("listitem")).to_have_text(["Short Be brief.", "Shorter Be very brief."])


@pytest.mark.parametrize("width", [320, 1280])
def test_dialogs_are_not_wider_than_the_screen(browser: Browser, server: ScriptedServer, width: int) -> None:
    with visit(browser, server.url, viewport={"width": width, "height": 600}) as tab:
        tab.page.goto("/")
        connected(tab.page)
        write(tab.page, "name" * 20, "unbreakable" * 40)
        for opener in ("Prompts", "Settings"):
            tab.page.get_by_role("button", name=opener, exact=True).click()
            dialog = tab.page.get_by_role("dialog")
            box = dialog.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
            assert dialog.evaluate("dialog => dialog.scrollWidth - dialog.clientWidth") <= 0
            tab.page.keyboard.press("Escape")
            expect(dialog).to_be_hidden()


def test_prompts_of_the_tenant_stand_beside_those_of_the_browser(browser: Browser, server: ScriptedServer) -> None:
    """Its admins write them on the page; others read and use them, and see changes."""
    with person(browser, server, "adam", admin=True) as admin, person(browser, server, "ann") as user:
        write(user, "Own", "Only here.")
        dialog = library(admin)
        dialog.get_by_role("button", name="New prompt").click()
        dialog.get_by_label("Name").fill("Brief")
        dialog.get_by_label("Text").fill("Answer {{question}} in a word.")
        dialog.get_by_label(SHARE).check()
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("listitem")).to_contain_text("shared")
        reading = library(user)
        expect(names(reading)).to_have_text(["Own", "Brief"])
        expect(reading.get_by_role("button", name="Change: Own")).to_be_visible()
        expect(reading.get_by_role("button", name="Change: Brief")).to_have_count(0)
        expect(reading.get_by_role("button", name="Delete: Brief")).to_have_count(0)
        user.keyboard.type("brief")
        user.keyboard.press("Enter")
        reading.get_by_label("question").fill("why")
        reading.get_by_role("button", name="Insert").click()
        expect(message(user)).to_have_value("Answer why in a word.")
        message(user).fill("")
        reading = library(user)
        reading.get_by_role("button", name="New prompt").click()
        expect(reading.get_by_label("Text")).to_be_visible()
        expect(reading.get_by_label(SHARE)).to_be_hidden()
        dialog.get_by_role("button", name="Change: Brief").click()
        dialog.get_by_label("Text").fill("Answer {{question}} in two words.")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("listitem")).to_contain_text("in two words")
        reading.get_by_role("button", name="Back").click()
        expect(reading.get_by_role("listitem").filter(has_text="Brief")).to_contain_text("in two words")
        dialog.get_by_role("button", name="Delete: Brief").click()
        expect(dialog.get_by_text("Nobody of your organisation will have this prompt any more.")).to_be_visible()
        dialog.get_by_role("button", name="Delete", exact=True).click()
        expect(dialog.get_by_text("No prompts yet.")).to_be_visible()
        expect(dialog.get_by_role("searchbox")).to_be_focused()


def test_a_prompt_that_is_written_early_can_be_shared(browser: Browser, server: ScriptedServer) -> None:
    """The form is there before those of the tenant are; what is written stays when they come."""
    with person(browser, server, "eve", admin=True) as admin:
        held: list[Route] = []
        admin.route("**/v1/prompts", lambda route: held.append(route))
        with admin.expect_request("**/v1/prompts"):
            dialog = library(admin)
        dialog.get_by_role("button", name="New prompt").click()
        dialog.get_by_label("Name").fill("Early")
        dialog.get_by_label("Text").fill("Be quick.")
        expect(dialog.get_by_label(SHARE)).to_be_hidden()
        [asked] = held
        asked.continue_()
        admin.unroute("**/v1/prompts")
        dialog.get_by_label(SHARE).check()
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("listitem").filter(has_text="Early")).to_have_text("Early Be quick.shared")
        dialog.get_by_role("button", name="Delete: Early").click()
        dialog.get_by_role("button", name="Delete", exact=True).click()
        expect(dialog.get_by_text("No prompts yet.")).to_be_visible()


def test_a_prompt_can_be_shared_later_and_taken_back(browser: Browser, server: ScriptedServer) -> None:
    """Then it is in one place only. Where two change it at a time, the slower is told so."""
    with person(browser, server, "eva", admin=True) as admin, person(browser, server, "max", admin=True) as other:
        write(admin, "Short", "Be brief.")
        dialog = library(admin)
        dialog.get_by_role("button", name="Change: Short").click()
        dialog.get_by_label(SHARE).check()
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("listitem")).to_have_text(["Short Be brief.shared"])
        elsewhere = library(other)
        elsewhere.get_by_role("button", name="Change: Short").click()
        dialog.get_by_role("button", name="Change: Short").click()
        dialog.get_by_label("Text").fill("Be very brief.")
        dialog.get_by_role("button", name="Save").click()
        expect(names(dialog)).to_be_visible()
        elsewhere.get_by_label("Text").fill("Be long.")
        elsewhere.get_by_role("button", name="Save").click()
        expect(elsewhere.get_by_role("alert")).to_contain_text("Somebody has changed this prompt meanwhile.")
        elsewhere.get_by_role("button", name="Back").click()
        elsewhere.get_by_role("button", name="Delete: Short").click()
        dialog.get_by_role("button", name="Change: Short").click()
        dialog.get_by_label("Text").fill("Be as brief as you can.")
        dialog.get_by_role("button", name="Save").click()
        expect(names(dialog)).to_be_visible()
        elsewhere.get_by_role("button", name="Delete", exact=True).click()
        expect(elsewhere.get_by_role("alert")).to_contain_text("Somebody has changed this prompt meanwhile.")
        elsewhere.get_by_role("button", name="Back").click()
        expect(elsewhere.get_by_role("listitem")).to_contain_text("Be as brief as you can.")
        dialog.get_by_role("button", name="Change: Short").click()
        dialog.get_by_label(SHARE).uncheck()
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("listitem")).to_have_text(["Short Be as brief as you can."])
        other.keyboard.press("Escape")
        message(other).fill("")
        expect(library(other).get_by_text("No prompts yet.")).to_be_visible()


def test_without_the_server_the_prompts_of_the_browser_are_there(tab: Visit) -> None:
    write(tab.page, "Short", "Be brief.")
    tab.page.route("**/v1/prompts", lambda route: route.abort())
    dialog = library(tab.page)
    expect(dialog.get_by_text("The prompts of your organisation cannot be read at the moment.")).to_be_visible()
    expect(names(dialog)).to_have_text(["Short"])
