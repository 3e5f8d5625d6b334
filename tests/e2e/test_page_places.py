"""Where a tenant has conversations kept: on the server, for a user's browsers together, or in the tab only."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis
from playwright.sync_api import Browser, Page, Route, expect

from gateway.config.chat import ChatSettings
from gateway.config.settings import demo_settings
from tests.e2e.browser import Visit, needs_chromium, visit
from tests.e2e.page import answer, answered, ask, connected, give_key
from tests.e2e.scripted import Answer, ScriptedServer
from tests.e2e.test_page_history import exported, fill, listed, new_chat
from tests.redis_bytes import dumped

pytestmark = needs_chromium

SECRET = "canary7f3a"


@pytest.fixture(scope="module")
def keeping(redis_url: str) -> Iterator[ScriptedServer]:
    """A server that keeps conversations of callers with a user."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    settings = msgspec.structs.replace(demo_settings(), chat=ChatSettings(history="server"))
    with ScriptedServer(redis_url, settings) as server:
        yield server


@pytest.fixture(scope="module")
def ann(keeping: ScriptedServer) -> str:
    """Her key."""
    return keeping.key_of("ann")


@contextlib.contextmanager
def profile(browser: Browser, server: ScriptedServer, key: str, address: str = "/") -> Iterator[Visit]:
    """A browser's profile of its own, in which a key was typed."""
    with visit(browser, server.url) as tab:
        give_key(tab.page, key)
        tab.page.goto(address)
        connected(tab.page)
        yield tab


def sent(page: Page) -> None:
    """The server has everything: the page would ask before it is left otherwise."""
    expect(page.locator("#kept")).to_have_text(re.compile("^Kept on the server"))
    while not page.evaluate("dispatchEvent(new Event('beforeunload', { cancelable: true }))"):
        page.wait_for_timeout(20)


def looked_at(page: Page) -> None:
    """The page is shown again, after another one was."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def databases(page: Page) -> int:
    found: int = page.evaluate("indexedDB.databases().then((all) => all.length)")
    return found


def test_another_browser_of_the_same_user_sees_it(
    browser: Browser, keeping: ScriptedServer, ann: str, redis_url: str
) -> None:
    """And goes on with it; another user does not, and nothing of it can be read in Redis."""
    keeping.pipeline.answers[f"about {SECRET}"] = Answer(text=f"It is {SECRET}.")
    with profile(browser, keeping, ann) as first:
        ask(first.page, f"about {SECRET}")
        answered(first.page)
        sent(first.page)
        with profile(browser, keeping, ann) as second:
            listed(second.page).filter(has_text=SECRET).click()
            expect(answer(second.page)).to_have_text(f"It is {SECRET}.")
            ask(second.page, "and then?")
            answered(second.page)
            sent(second.page)
            looked_at(first.page)
            expect(first.page.locator(".question p")).to_have_text([f"about {SECRET}", "and then?"])
            assert databases(first.page) == databases(second.page) == 0
        with profile(browser, keeping, ann, first.page.url) as third:
            expect(answer(third.page)).to_have_text("A short answer.")
        with profile(browser, keeping, keeping.key_of("bob")) as other:
            expect(other.page.get_by_text("No conversations yet.")).to_be_visible()
        id = first.page.url.rsplit("/", 1)[1]
        for key, status in ((ann, 200), (keeping.key_of("eve"), 404)):
            headers = {"authorization": f"Bearer {key}"}
            assert first.context.request.get(f"/v1/chats/{id}", headers=headers).status == status
        assert SECRET.encode() not in dumped(redis_url)


def test_what_is_not_on_the_server_yet_is_said_and_sent_later(
    browser: Browser, keeping: ScriptedServer, ann: str
) -> None:
    """Both sides stay, where somebody else has gone on meanwhile."""
    with profile(browser, keeping, ann) as first:
        fill(first, "one")
        sent(first.page)
        first.context.route("**/v1/chats/**", lambda route: route.abort())
        ask(first.page, "two")
        answered(first.page)
        expect(first.page.locator("#kept")).to_contain_text("One conversation is not on the server yet.")
        with profile(browser, keeping, ann, first.page.url) as second:
            ask(second.page, "three")
            answered(second.page)
            sent(second.page)
        first.context.unroute("**/v1/chats/**")
        first.page.evaluate("dispatchEvent(new Event('online'))")
        sent(first.page)
        with profile(browser, keeping, ann, first.page.url) as third:
            expect(third.page.locator(".question p")).to_have_text(["one", "two"])
            third.page.get_by_role("button", name="Earlier version").click()
            expect(third.page.locator(".question p")).to_have_text(["one", "three"])


def test_found_renamed_deleted_and_brought_back(browser: Browser, keeping: ScriptedServer, tmp_path: Path) -> None:
    keeping.pipeline.answers["fruit"], kay = Answer(text="Bananas are berries."), keeping.key_of("kay")
    with profile(browser, keeping, kay) as tab:
        fill(tab, "fruit", "bread")
        search = tab.page.get_by_role("searchbox", name="Search conversations")
        search.fill("BERRIES fruit")
        expect(listed(tab.page)).to_have_text(["fruit"])
        search.fill("")
        tab.page.get_by_role("button", name="Rename: fruit").click()
        tab.page.get_by_role("textbox", name="Title").fill("Botany")
        tab.page.keyboard.press("Enter")
        tab.page.get_by_role("button", name="Pin: Botany").click()
        expect(listed(tab.page)).to_have_text(["Botany", "bread"])
        sent(tab.page)
        before = exported(tab.page, tmp_path)
        tab.page.get_by_role("button", name="Delete: Botany").click()
        expect(listed(tab.page)).to_have_text(["bread"])
        sent(tab.page)
        with profile(browser, keeping, kay) as other:
            expect(listed(other.page)).to_have_text(["bread"])
        tab.page.get_by_role("button", name="Undo").click()
        expect(listed(tab.page)).to_have_text(["Botany", "bread"])
        sent(tab.page)
        assert exported(tab.page, tmp_path) == before


def kept_by(browser: Browser, server: ScriptedServer, key: str) -> str:
    """Two conversations of a user, "one" and "two"; returns the address of the second."""
    with profile(browser, server, key) as tab:
        fill(tab, "one", "two")
        sent(tab.page)
        return tab.page.url


LIST = re.compile(r"/v1/chats\?limit=")


def test_the_list_comes_after_the_conversation(browser: Browser, keeping: ScriptedServer) -> None:
    """The one that the address names, which is read at the same time."""
    lee = keeping.key_of("lee")
    address = kept_by(browser, keeping, lee)
    with visit(browser, keeping.url) as tab:
        give_key(tab.page, lee)
        held: list[Route] = []
        tab.page.route(LIST, lambda route: held.append(route))
        tab.page.goto(address)
        expect(answer(tab.page)).to_have_text("A short answer.")
        for route in held:
            route.continue_()
        expect(listed(tab.page)).to_have_text(["two", "one"])


def test_a_folder_is_written_while_the_list_is_read(browser: Browser, keeping: ScriptedServer) -> None:
    zoe = keeping.key_of("zoe")
    kept_by(browser, keeping, zoe)
    with profile(browser, keeping, zoe) as tab:
        expect(listed(tab.page)).to_have_text(["two", "one"])
        held: list[Route] = []
        tab.page.route(LIST, lambda route: held.append(route))
        with tab.page.expect_request(LIST):
            looked_at(tab.page)
        tab.page.get_by_role("button", name="Move to a folder: one").click()
        tab.page.get_by_role("combobox", name="Folder").fill("Trees")
        for route in held:
            route.continue_()
        tab.page.unroute(LIST)
        tab.page.get_by_role("combobox", name="Folder").press("Enter")
        expect(tab.page.get_by_role("heading", name="Trees")).to_be_visible()
        sent(tab.page)


def test_what_cannot_be_read_is_said(browser: Browser, keeping: ScriptedServer) -> None:
    """Nothing is shown in its place, deleted for good, or missing in a file. The same link leads there later."""
    mia = keeping.key_of("mia")
    kept_by(browser, keeping, mia)
    with profile(browser, keeping, mia) as tab:
        ask(tab.page, "three")
        answered(tab.page)
        sent(tab.page)
        told = tab.page.locator("#told")
        tab.page.route("**/v1/chats/*", lambda route: route.abort())
        listed(tab.page).filter(has_text="one").click()
        expect(told).to_have_text("This conversation cannot be read at the moment.")
        expect(tab.page.locator(".question p")).to_have_text(["three"])
        tab.page.get_by_role("button", name="Export").click()
        expect(told).to_have_text("The server cannot be reached.")
        tab.page.get_by_role("button", name="Delete: one").click()
        expect(told).to_have_text("This conversation cannot be read at the moment.")
        expect(listed(tab.page)).to_have_text(["three", "two", "one"])
        tab.page.unroute("**/v1/chats/*")
        listed(tab.page).filter(has_text="one").click()
        expect(tab.page.locator(".question p")).to_have_text(["one"])


def test_an_export_waits_as_long_as_the_server_says(browser: Browser, keeping: ScriptedServer, tmp_path: Path) -> None:
    """There may be more conversations than can be read in a minute; none of them is left out."""
    ida = keeping.key_of("ida")
    kept_by(browser, keeping, ida)
    refusal = {"error": {"message": "too often", "code": "rate_limit_exceeded"}}
    with profile(browser, keeping, ida) as tab:
        expect(listed(tab.page)).to_have_text(["two", "one"])
        tab.page.route(
            "**/v1/chats/*",
            lambda route: route.fulfill(status=429, headers={"retry-after": "0"}, json=refusal),
            times=1,
        )
        conversations = exported(tab.page, tmp_path)["conversations"]
        assert [each["title"] for each in conversations] == ["two", "one"]


def test_tabs_share_them(browser: Browser, keeping: ScriptedServer) -> None:
    """Of one browser, without being looked at."""
    tim = keeping.key_of("tim")
    with profile(browser, keeping, tim) as tab:
        ask(tab.page, "one")
        answered(tab.page)
        sent(tab.page)
        other = tab.context.new_page()
        give_key(other, tim)
        other.goto(tab.page.url)
        connected(other)
        ask(other, "two")
        answered(other)
        expect(tab.page.locator(".question p")).to_have_text(["one", "two"])


def test_a_key_that_several_may_hold_keeps_them_in_the_browser(browser: Browser, keeping: ScriptedServer) -> None:
    with visit(browser, keeping.url) as tab:
        tab.page.goto("/")
        connected(tab.page)
        expect(tab.page.locator("#kept")).to_have_text("Kept in this browser")
        ask(tab.page, "one")
        answered(tab.page)
        assert databases(tab.page) == 1


def test_off_keeps_nothing_anywhere(browser: Browser, redis_url: str) -> None:
    """No database, no stored response; the tab has its list, and forgets it when it is loaded again."""
    settings = msgspec.structs.replace(demo_settings(), chat=ChatSettings(history="off"))
    with ScriptedServer(redis_url, settings) as server, visit(browser, server.url) as tab:
        tab.page.goto("/")
        connected(tab.page)
        expect(tab.page.locator("#kept")).to_have_text("Kept in this tab only")
        for question in ("one", "two"):
            ask(tab.page, question)
            answered(tab.page)
        assert [turn.request.store for turn in server.pipeline.turns] == [False, False]
        assert [entry.content for entry in server.pipeline.turns[-1].conversation] == ["one", "A short answer.", "two"]
        new_chat(tab.page)
        listed(tab.page).filter(has_text="one").click()
        expect(tab.page.locator(".question p")).to_have_text(["one", "two"])
        assert databases(tab.page) == 0
        tab.page.reload()
        connected(tab.page)
        expect(tab.page.get_by_text("No conversations yet.")).to_be_visible()
        assert databases(tab.page) == 0
