"""Pictures of every view of the chat page and of the console, in light and dark, wide and narrow.

    make screens            writes docs/screens.md and docs/images/screens/

A whole `roundhouse serve` with the model of this repository, to which a tenant, an adapter, a route, two weeks of turns
and some questions have been given. Each picture has the four looks of a view, at half their size; one that looks as
before is left as it is. tests/test_screens.py fails while a view has none.
"""

from __future__ import annotations

import asyncio
import re
import tomllib
from typing import Any

import msgspec
from playwright.sync_api import Browser, Locator, Page, expect

from gateway.config.billing import PriceSettings
from tests.e2e import screens_usage
from tests.e2e.browser import chromium, visit
from tests.e2e.conftest import NAMES, Installation
from tests.e2e.layouts import HEIGHT, WIDTHS
from tests.e2e.page import answered, ask, connected, message
from tests.e2e.pictures import FOLDER, Album, nothing
from tests.e2e.test_page_keyboard import find, keys, leave_fields
from tests.e2e.test_page_prompts import library, write
from tests.gateway.admin.console.pages import OPERATORS_VIEWS, dialog, loaded, open_view, row

ALONE = ("How do I add an adapter?", "Which models can you serve?")
QUESTIONS = ("What is Roundhouse?", "How do I change the port?", "Tell me a joke.", "How do I get a real model?")
PROMPTS = {
    "Explain to a child": "Explain {{what}} as if I were seven years old.",
    "Summarise": "Summarise this in three sentences:",
}
SHARED_PROMPT = {"name": "House style", "text": "Rewrite this in our house style: short sentences, no jargon."}
HEAD = """# What it looks like

Every view of the [chat page](chat-page.md) and of the [console](console.md), in light and dark, on a wide and on a
narrow screen. `make screens` takes these pictures and writes this page, with the model of this repository.
"""
# Redis may take its time: other work on the machine must not be what the pictures show.
TABLES = """
[redis]
timeout = 2.0

[[prices]]
name = "roundhouse-demo-2m"
input = 150000
output = 600000

[[prices]]
name = "roundhouse-demo-large"
input = 1500000
output = 6000000

[chat]
comments = true
"""
OTHERWISE = {
    "#/usage": "#/usage?split=model&measure=turns",
    "#/plan": "#/plan?model=llama-3.1-8b&hardware=h100&rate=20",
}
"""Addresses of views with filters that show more."""
CONSOLE = {
    **{
        OTHERWISE.get(address, address).replace("shop", "acme"): heading.replace("shop", "acme")
        for address, heading in OPERATORS_VIEWS.items()
    },
    "#/adapters/pirate": "Adapter pirate",
    "#/routes/assistant": "Route assistant",
}
"""Heading of each view that has an address."""

ASK = """([method, path, body, more]) => fetch(path, {
  method, body: JSON.stringify(body), headers: { "content-type": "application/json", ...more },
}).then(async (answer) => {
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
})"""


def furnish(page: Page) -> None:
    """A tenant with users, keys and limits, a route with a canary, as an operator makes them."""

    def admin(method: str, path: str, body: dict[str, Any]) -> Any:
        return page.evaluate(ASK, [method, f"/admin/v1/{path}", body, {"if-match": "*"}])

    admin("POST", "tenants", {"name": "acme", "description": "Acme Corporation"})
    ada = admin("POST", "tenants/acme/users", {"subject": "ada"})["id"]
    admin("POST", "tenants/acme/keys", {"description": "Ada's notebook", "user": ada})
    key = admin("POST", "tenants/acme/keys", {"description": "build server", "scopes": ["chat"]})["key"]
    limits = {"requests_per_minute": 600, "output_tokens_per_minute": 100_000, "spend_per_day": 10_000}
    admin("PUT", "tenants/acme/quotas", {"quota": limits})
    targets = [{"model": NAMES["small"], "weight": 95}, {"model": NAMES["large"], "weight": 5}]
    admin("POST", "routes", {"name": "assistant", "description": "what the intranet asks", "targets": targets})
    page.evaluate(ASK, ["POST", "/v1/prompts", SHARED_PROMPT, {}])
    for question in 2 * (*ALONE, *QUESTIONS):
        respond(page, question, {"authorization": f"Bearer {key}"})


def respond(page: Page, question: str, headers: dict[str, str]) -> None:
    """Have the large tier answer, for whoever is signed in if the headers say nothing else."""
    page.evaluate(ASK, ["POST", "/v1/responses", {"model": "large", "input": question}, headers])


def to_end(page: Page) -> None:
    page.locator("#scroller").evaluate("scroller => scroller.scrollTo(0, scroller.scrollHeight)")


def to_foot(page: Page) -> None:
    page.evaluate("scrollTo(0, document.body.scrollHeight)")


def converse(page: Page) -> None:
    """Conversations to be found, and one to be looked at."""
    for question in ALONE:
        ask(page, question)
        answered(page)
        page.get_by_role("button", name="New chat").click()
    for question in QUESTIONS:
        ask(page, question)
        answered(page)


def rate(turn: Locator, thumb: str, comment: str, reason: str = "") -> None:
    """Say what somebody thinks of an answer; the comment is not sent yet."""
    turn.get_by_role("button", name=thumb).click()
    if reason:
        turn.get_by_role("button", name=reason).click()
    turn.locator("form.comment textarea").fill(comment)


def send(turn: Locator) -> None:
    turn.locator("form.comment button").click()
    expect(turn.get_by_text("Sent", exact=True)).to_be_visible()


def chat_pictures(page: Page, album: Album) -> str:
    """The states of the chat page -> the id of a response whose tier the router chose."""
    page.goto("/")
    connected(page)
    expect(page.locator("#model option", has_text="pirate")).to_have_count(1)
    album.add(page, "welcome", "The chat page, empty")
    converse(page)
    first, last = page.locator(".turn").first, page.locator(".turn").last
    page.locator("details.route summary").last.click()
    album.add(page, "answer", "An answer with its card", to_end)
    page.locator("details.route summary").last.click()
    rate(last, "Bad answer", "It should say where the models are listed.", reason="Incomplete")
    album.add(page, "rating", "What somebody thinks of an answer", to_end)
    send(last)
    rate(first, "Good answer", "Just what I wanted to know.")
    send(first)
    page.get_by_role("button", name="Compare").last.click()
    expect(page.locator(".compare-form")).to_be_visible()
    album.add(page, "compare-form", "Whom else to ask, and what that costs", to_end)
    page.locator(".compare-form").get_by_role("button", name="Ask").click()
    expect(page.get_by_role("button", name="Prefer this").first).to_be_visible()
    album.add(page, "compare", "Answers side by side", to_end)
    page.locator(".comparison-foot").get_by_role("button", name="Close").click()
    album.add(page, "conversations", "The list of conversations, on a narrow screen over the conversation", show_list)
    [response] = re.findall(r"resp_[0-9a-f]+", first.locator("details.route").text_content() or "")
    return response


def show_list(page: Page) -> None:
    if page.viewport_size == {"width": WIDTHS[1], "height": HEIGHT}:
        expect(page.locator("#sidebar")).to_be_hidden()
        page.get_by_role("button", name="Conversations", exact=True).click()


def dialog_pictures(page: Page, album: Album) -> str:
    """The dialogs of the chat page -> the address of a conversation that is shared."""
    page.get_by_role("button", name="Settings").click()
    expect(dialog(page)).to_be_visible()
    album.add(page, "settings", "Settings of a conversation")
    page.keyboard.press("Escape")
    for name, text in PROMPTS.items():
        write(page, name, text)
    library(page)
    expect(dialog(page).get_by_role("listitem")).to_have_count(len(PROMPTS) + 1)
    album.add(page, "prompts", "The library of prompts")
    page.keyboard.press("Escape")
    message(page).fill("")
    find(page)
    dialog(page).get_by_role("searchbox").fill("an")
    expect(dialog(page).get_by_role("button", name="New chat")).to_have_count(0)
    expect(dialog(page).get_by_role("link", name=ALONE[0])).to_be_visible()
    album.add(page, "find", "Conversations and actions, found by their names")
    page.keyboard.press("Escape")
    leave_fields(page)
    page.keyboard.press("?")
    expect(keys(page)).to_be_visible()
    album.add(page, "keys", "What keys do")
    page.keyboard.press("Escape")
    page.locator("#connection").click()
    expect(dialog(page)).to_be_visible()
    album.add(page, "key", "Another key")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Share", exact=True).click()
    page.get_by_role("button", name="Create address").click()
    expect(page.get_by_label("Address")).to_have_value(re.compile("/s/"))
    album.add(page, "share", "Sharing a conversation")
    address = page.get_by_label("Address").input_value()
    page.keyboard.press("Escape")
    return address


def console_pictures(page: Page, album: Album, response: str) -> None:
    """The views of the console, its dialogs, and the page of its API. Args: response: whose turn is shown."""
    prepare = {"Live": ask_meanwhile, "Playground": try_out}
    for address, heading in CONSOLE.items():
        open_view(page, address, heading)
        prepare.get(heading, nothing)(page)
        # The playground's answers are below its form.
        arrange = to_foot if heading == "Playground" else nothing
        album.add(page, f"console-{heading.split()[0].lower()}", f"Console: {heading}", arrange)
    open_view(page, f"#/turns/{response}", "Turn")
    expect(page.locator("dl.pairs").first).to_be_visible()
    album.add(page, "console-turn", "Console: one turn")
    open_view(page, "#/tenants", "Tenants")
    row(page, "acme").get_by_role("button").click()
    dialog(page).get_by_label("Description").fill("Acme Corporation, Springfield")
    expect(dialog(page).get_by_role("row").filter(has_text="Springfield")).to_be_visible()
    album.add(page, "console-change", "Console: a change, before it is made")
    page.keyboard.press("Escape")
    open_view(page, "#/adapters", "Adapters")
    page.get_by_role("button", name="Upload an adapter").click()
    expect(dialog(page)).to_be_visible()
    album.add(page, "console-upload", "Console: an adapter to be uploaded")
    page.keyboard.press("Escape")
    page.goto("/admin/api/")
    expect(page.locator("details.operation").first).to_be_visible()
    album.add(page, "admin-api", "The page of the admin API")


def try_out(page: Page) -> None:
    page.get_by_label("Question").fill(QUESTIONS[2])
    for number, model in enumerate(("small", "large", "pirate"), 1):
        page.get_by_label(f"Model {number}").select_option(model)
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_text("All answers have ended.")).to_be_visible()


def ask_meanwhile(page: Page) -> None:
    """Questions of some seconds, for lines that rise."""
    line = page.locator(".sparkline polyline").last
    for seconds, question in enumerate(QUESTIONS, 2):
        respond(page, question, {})
        expect(line).to_have_attribute("points", re.compile(rf"(\S+ ){{{seconds}}}"))


def german_pictures(page: Page, album: Album) -> None:
    """Both in the other language, which the field of the console chooses."""
    open_view(page, "#/", "Overview")
    page.get_by_label("Language").select_option(label="Deutsch")
    loaded(page, "Übersicht")
    expect(page.locator("svg[role=img]")).to_be_visible()
    album.add(page, "console-german", "The console in German")
    page.goto("/")
    expect(page.get_by_role("button", name="Neuer Chat")).to_be_visible()
    expect(page.locator("#connection")).to_have_text("Verbunden")
    album.add(page, "german", "The chat page in German")


def pictures_for_strangers(browser: Browser, url: str, album: Album) -> None:
    """What somebody sees who has not signed in."""
    with visit(browser, url) as tab:
        tab.page.goto("/admin/")
        expect(tab.page.get_by_label("API key")).to_be_visible()
        album.add(tab.page, "console-sign-in", "Console: signing in")
        tab.page.goto("/auth/sign-in")
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Sign in")
        album.add(tab.page, "sign-in", "Signing in without a key")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    album = Album()
    running = Installation(tiers=["small", "large"], tables=TABLES)
    try:
        [address] = re.findall(r"http://127\.0\.0\.1:\d+/auth/link\?secret=\S+", running.wait_said("/auth/link"))
        [socket] = running.folder.rglob("redis.sock")
        prices = msgspec.convert(tomllib.loads(TABLES)["prices"], list[PriceSettings])
        asyncio.run(screens_usage.write(f"unix://{socket}", prices))
        with chromium() as browser, visit(browser, running.url) as tab:
            page = tab.page
            page.goto(address)
            expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
            furnish(page)
            response = chat_pictures(page, album)
            shared = dialog_pictures(page, album)
            page.goto(shared)
            expect(page.locator("#told")).to_contain_text("It can be read until")
            album.add(page, "shared", "A conversation that somebody has shared")
            pictures_for_strangers(browser, running.url, album)
            console_pictures(page, album, response)
            german_pictures(page, album)
    finally:
        running.close()
    album.close(HEAD)


if __name__ == "__main__":
    main()
