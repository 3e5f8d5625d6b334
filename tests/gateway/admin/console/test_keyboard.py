"""The console and the chat page by keys alone."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.e2e import keyboard
from tests.e2e.browser import needs_chromium, visit
from tests.e2e.page import answered, connected
from tests.gateway.admin.conftest import OPERATOR, Shop
from tests.gateway.admin.console.pages import OPERATORS_VIEWS, dialog, loaded, row

pytestmark = needs_chromium


def button(page: Page, name: str) -> None:
    """The last button of this name."""
    keyboard.press(page.get_by_role("button", name=name, exact=True).last)


def link(page: Page, place: str, name: str) -> None:
    keyboard.press(page.get_by_role("navigation", name=place).get_by_role("link", name=name, exact=True))


def field(page: Page, label: str, text: str) -> None:
    keyboard.write(dialog(page).get_by_label(label, exact=True), text)


def send(page: Page, verb: str) -> None:
    """The button of the open dialog, which closes then."""
    keyboard.press(dialog(page).get_by_role("button", name=verb, exact=True))


def closed(page: Page) -> None:
    expect(dialog(page)).to_have_count(0)
    expect(page.locator(":focus")).to_have_count(1)


def test_all_can_be_done_without_a_pointer(browser: Browser, shop: Shop, tmp_path: Path) -> None:
    """Every control of every view is reached by Tab, and works; the focus is never lost."""
    with visit(browser, shop.url) as tab:
        page = tab.page
        page.goto("/admin/")
        keyboard.write(page.get_by_label("API key"), OPERATOR)
        page.keyboard.press("Enter")
        loaded(page, "Overview")
        button(page, "Skip to the content")
        expect(page.get_by_role("heading", level=1)).to_be_focused()
        see_all_views(page)
        make_tenant(page)
        set_limits(page)
        look_closely(page)
        upload(page, tmp_path)
        link(page, "Views", "Tenants")
        loaded(page, "Tenants")
        keyboard.press(row(page, "bakery").get_by_role("link"))
        loaded(page, "Keys of bakery")
        button(page, "Make a key")
        field(page, "Description", "oven")
        send(page, "Make")
        expect(dialog(page).get_by_role("heading", name="The new key")).to_be_visible()
        with page.expect_popup() as opened:
            send(page, "Chat with it")
        tab.watch(opened.value)
        converse(opened.value, tmp_path)
        page.bring_to_front()
        send(page, "I have it")
        closed(page)
        keyboard.press(row(page, "oven").get_by_role("button", name="Rotate"))
        keyboard.choose(dialog(page).get_by_label("The old key"), "ends")
        send(page, "Rotate")
        expect(dialog(page).get_by_role("heading", name="The new key")).to_be_visible()
        page.keyboard.press("Escape")
        closed(page)
        button(page, "Sign out")
        expect(page.get_by_text("You are signed out.")).to_be_visible()
        assert keyboard.unreachable(page) == []


def see_all_views(page: Page) -> None:
    """Each by its link, after which reading goes on at its heading. Those of one tenant have no link of their own."""
    first, *others = (heading for heading in OPERATORS_VIEWS.values() if " of " not in heading)
    for heading in (*others, first):
        link(page, "Views", heading)
        loaded(page, heading)
        expect(page.get_by_role("heading", level=1)).to_be_focused()
        assert keyboard.unreachable(page, "main") == [], heading
    assert keyboard.unreachable(page) == []


def make_tenant(page: Page) -> None:
    link(page, "Views", "Tenants")
    loaded(page, "Tenants")
    button(page, "Make a tenant")
    assert keyboard.unreachable(page) == []
    field(page, "Name", "bakery")
    page.keyboard.press("Enter")
    closed(page)
    keyboard.press(row(page, "bakery").get_by_role("button", name="Change"))
    field(page, "Description", "bread")
    keyboard.press(dialog(page).locator("summary"))
    expect(dialog(page).locator("pre")).to_contain_text("bread")
    send(page, "Change")
    closed(page)
    keyboard.press(row(page, "bread").get_by_role("link"))
    loaded(page, "Keys of bakery")


def set_limits(page: Page) -> None:
    link(page, "Of bakery", "Quotas")
    loaded(page, "Quotas of bakery")
    button(page, "Change the tenant's limits")
    field(page, "Requests per minute", "600")
    keyboard.choose(dialog(page).get_by_label("What a turn reserves"), "Strict")
    send(page, "Set")
    closed(page)
    expect(row(page, "requests per minute")).to_contain_text("600")
    link(page, "Of bakery", "Users")
    loaded(page, "Users of bakery")
    button(page, "Make a user")
    field(page, "Subject", "bob")
    page.keyboard.press("Enter")
    closed(page)
    button(page, "Delete bob")
    field(page, "Type bob to confirm", "bob")
    send(page, "Delete")
    closed(page)
    expect(row(page, "bob")).to_have_count(0)


def look_closely(page: Page) -> None:
    """Filters, periods, a text whose routing is explained, the audit log."""
    link(page, "Views", "Usage")
    loaded(page, "Usage")
    keyboard.choose(page.get_by_label("By", exact=True), "Model")
    button(page, "Show")
    expect(page).to_have_url(re.compile("by=model"))
    link(page, "Views", "Caches")
    loaded(page, "Caches")
    link(page, "Period", "7 days")
    expect(page.get_by_role("link", name="7 days")).to_have_attribute("aria-current", "true")
    link(page, "Views", "Routing")
    loaded(page, "Routing")
    keyboard.write(page.get_by_label("First message of a conversation"), "What is a cache?")
    button(page, "Explain")
    expect(page.get_by_text(re.compile("It would go to the"))).to_be_visible()
    assert keyboard.unreachable(page) == []
    link(page, "Views", "Audit")
    loaded(page, "Audit")
    button(page, "Verify the log")
    expect(page.get_by_text("The log is intact")).to_be_visible()


def upload(page: Page, folder: Path) -> None:
    """Files are chosen in a window of the system, which Enter opens."""
    link(page, "Views", "Adapters")
    loaded(page, "Adapters")
    button(page, "Upload an adapter")
    config = folder / "adapter_config.json"
    config.write_text("{}")
    with page.expect_file_chooser() as chooser:
        keyboard.press(dialog(page).locator("input[type=file]"))
    chooser.value.set_files(config)
    expect(dialog(page).get_by_text("Missing: adapter_model.safetensors.")).to_be_visible()
    assert keyboard.unreachable(page) == []
    page.keyboard.press("Escape")
    closed(page)


def converse(page: Page, folder: Path) -> None:
    """What is done beside questions and answers, for which see `tests.e2e.test_page_by_keys`."""
    connected(page)
    assert keyboard.unreachable(page) == []
    keyboard.choose(page.get_by_label("Who answers"), "small")
    keyboard.press(page.get_by_role("button", name="Settings", exact=True))
    field(page, "Longest answer", "8")
    send(page, "Use")
    closed(page)
    ask(page, "hello")
    button(page, "Copy")
    button(page, "Bad answer")
    keyboard.press(page.locator("details.route summary").last)
    expect(page.locator(".route-facts").last).to_be_visible()
    button(page, "Compare")
    expect(page.locator(".compare-form")).to_be_visible()
    assert keyboard.unreachable(page) == []
    attach(page, folder)
    prompts(page)
    share(page)
    conversations(page)


def ask(page: Page, question: str) -> None:
    keyboard.write(page.locator("#message"), question)
    page.keyboard.press("Enter")
    answered(page)


def attach(page: Page, folder: Path) -> None:
    notes = folder / "notes.txt"
    notes.write_text("alpha")
    with page.expect_file_chooser() as chooser:
        keyboard.press(page.locator("#attach"))
    chooser.value.set_files(notes)
    button(page, "Remove notes.txt")
    expect(page.locator("#chips li")).to_have_count(0)


def prompts(page: Page) -> None:
    """The library opens by a key in the empty field."""
    keyboard.write(page.locator("#message"), "")
    page.keyboard.press("Backspace")
    page.keyboard.type("/")
    expect(dialog(page)).to_be_visible()
    button(page, "New prompt")
    field(page, "Name", "greeting")
    field(page, "Text", "hello")
    send(page, "Save")
    expect(dialog(page).get_by_text("greeting")).to_be_visible()
    assert keyboard.unreachable(page) == []
    page.keyboard.press("Escape")
    closed(page)


def share(page: Page) -> None:
    button(page, "Share")
    send(page, "Create address")
    expect(dialog(page).get_by_label("Address", exact=True)).to_have_value(re.compile("/s/"))
    assert keyboard.unreachable(page, "dialog") == []
    page.keyboard.press("Escape")
    closed(page)


def conversations(page: Page) -> None:
    button(page, "New chat")
    ask(page, "again")
    keyboard.press(page.get_by_role("button", name="Rename: again"))
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("renamed")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="renamed")).to_be_focused()
    button(page, "Pin: renamed")
    keyboard.press(page.get_by_role("button", name=re.compile("Switch to")))
    button(page, "Temporary chat")
    assert keyboard.unreachable(page) == []
