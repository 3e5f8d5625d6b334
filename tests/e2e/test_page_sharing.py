"""Conversations that are shared: encrypted by the page, read by others, revoked."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import pytest
import redis
from playwright.sync_api import Browser, Page, expect

from gateway.config.chat import ChatSettings
from gateway.config.settings import demo_settings
from gateway.turns.shares import DATA_KEY
from tests.e2e.browser import Visit, needs_chromium, violations, visit
from tests.e2e.page import answered, ask, connected, give_key
from tests.e2e.scripted import Answer, ScriptedServer
from tests.redis_bytes import dumped

pytestmark = needs_chromium

SECRET = "canary7f3a"
KEY = "roundhouse-demo"


def share(tab: Visit) -> str:
    """Share the conversation that is shown; returns the address."""
    tab.page.get_by_role("button", name="Share", exact=True).click()
    tab.page.get_by_role("button", name="Create address").click()
    address = tab.page.get_by_label("Address")
    expect(address).to_have_value(re.compile(r"/s/[\w-]{22}#[\w-]{43}$"))
    return address.input_value()


def conversation(tab: Visit, server: ScriptedServer) -> None:
    server.pipeline.answers[f"about {SECRET}"] = Answer(text=f"**{SECRET}** is `code`.")
    tab.page.goto("/")
    connected(tab.page)
    for question in (f"about {SECRET}", "and then?"):
        ask(tab.page, question)
        answered(tab.page)


@contextlib.contextmanager
def read(browser: Browser, address: str, key: str = "", **options: Any) -> Iterator[Page]:
    with visit(browser, address.split("/s/")[0], **options) as tab:
        if key:
            give_key(tab.page, key)
        tab.page.goto(address)
        yield tab.page


def told(page: Page, sentence: str) -> None:
    expect(page.locator("#told")).to_contain_text(sentence)


def test_read_by_who_has_the_address_and_a_key(browser: Browser, server: ScriptedServer, redis_url: str) -> None:
    """As it was when it was shared. No plain text is in what the gateway holds, and no key in what it is sent."""
    sent: list[str] = []
    with visit(browser, server.url) as tab:
        tab.page.on("request", lambda request: sent.append(f"{request.url} {request.post_data or ''}"))
        conversation(tab, server)
        address = share(tab)
        tab.page.get_by_role("button", name="Close").click()
        expect(tab.page.get_by_role("button", name="Share", exact=True)).to_be_focused()
        ask(tab.page, "later")
        answered(tab.page)
        id, key = address.rsplit("/", 1)[1].split("#")
        assert not any(key in request for request in sent)
        assert SECRET not in next(request for request in sent if "/v1/shares" in request and "ciphertext" in request)
        with redis.Redis.from_url(redis_url) as client:
            ciphertext = client.get(DATA_KEY.format(id=id))
        assert ciphertext is not None and SECRET.encode() not in ciphertext
        assert SECRET.encode() not in dumped(redis_url)
        with read(browser, address, KEY) as page:
            told(page, "It can be read until")
            expect(page.get_by_role("heading", level=1)).to_have_text(f"about {SECRET}")
            expect(page.locator(".question p")).to_have_text([f"about {SECRET}", "and then?"])
            expect(page.locator(".markdown strong")).to_have_text([SECRET])
            expect(page.locator(".markdown code")).to_have_text(["code"])


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), pytest.param("dark", 390, marks=pytest.mark.deep)])
def test_it_looks_like_a_conversation(
    browser: Browser, server: ScriptedServer, scheme: Literal["light", "dark"], width: int
) -> None:
    """With the style sheets of the chat page, and with its buttons that copy code. axe finds nothing there, nor in the
    dialog that shares it."""
    server.pipeline.answers["show"] = Answer(text="$x$\n\n```python\nprint(1)\n```\n")
    options: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    with visit(browser, server.url, **options) as tab:
        tab.page.goto("/")
        ask(tab.page, "show")
        answered(tab.page)
        if width == 390:
            tab.page.get_by_role("button", name="Conversations").click()
        address = share(tab)
        assert violations(tab.page) == []
    with read(browser, address, KEY, **options, permissions=["clipboard-read", "clipboard-write"]) as page:
        expect(page.locator(".code")).to_have_css("border-style", "solid")
        expect(page.locator(".question")).to_have_css("align-items", "flex-end")
        expect(page.locator("math")).to_have_count(1)
        assert violations(page) == []
        page.get_by_role("button", name="Copy").press("Enter")
        page.wait_for_function("navigator.clipboard.readText().then((text) => text === 'print(1)\\n')")


def test_who_has_no_key_is_asked_for_one(browser: Browser, server: ScriptedServer) -> None:
    with visit(browser, server.url) as tab:
        conversation(tab, server)
        address = share(tab)
    with read(browser, address) as page:
        page.get_by_label("Key", exact=True).fill(KEY)
        page.get_by_role("button", name="Continue").click()
        expect(page.locator(".question p")).to_have_text([f"about {SECRET}", "and then?"])


def forget_shares(redis_url: str) -> None:
    """Those of other tests."""
    with redis.Redis.from_url(redis_url) as client:
        for key in client.keys("rh1:share*"):
            client.delete(key)


def test_the_button_that_revokes_keeps_its_word_whole(browser: Browser, server: ScriptedServer, redis_url: str) -> None:
    forget_shares(redis_url)
    with visit(browser, server.url) as tab:
        conversation(tab, server)
        share(tab)
        tab.page.set_viewport_size({"width": 360, "height": 800})
        revoke = tab.page.get_by_role("button", name=re.compile("^Revoke: Shared on")).first
        lines = """button => {
          const text = document.createRange();
          text.selectNodeContents(button);
          return text.getClientRects().length;
        }"""
        assert revoke.evaluate(lines) == 1


def test_what_cannot_be_read_says_why(browser: Browser, server: ScriptedServer, redis_url: str) -> None:
    """Revoked, expired, never there, or by half an address."""
    forget_shares(redis_url)
    with visit(browser, server.url) as tab:
        conversation(tab, server)
        address = share(tab)
        for wrong in (address.split("#")[0], address[:-1], address[:-4] + "AAAA"):
            with read(browser, wrong, KEY) as page:
                told(page, "The address is not whole")
        tab.page.get_by_role("button", name="Create address").click()
        expect(tab.page.get_by_label("Address")).not_to_have_value(address)
        expiring = tab.page.get_by_label("Address").input_value()
        with redis.Redis.from_url(redis_url) as client:
            client.delete(DATA_KEY.format(id=expiring.rsplit("/", 1)[1].split("#")[0]))
        with read(browser, expiring, KEY) as page:
            told(page, "a limited time, which is over")
        revoke = tab.page.get_by_role("button", name=re.compile("^Revoke: Shared on"))
        expect(revoke).to_have_count(2)
        for left in (1, 0):
            revoke.first.click()
            expect(revoke).to_have_count(left)
        with read(browser, address, KEY) as page:
            told(page, "has revoked it")
            expect(page.locator("article")).to_have_count(0)
        with read(browser, f"{server.url}/s/{'a' * 22}#{'b' * 43}", KEY) as page:
            told(page, "There is no such conversation")


def test_anyone_reads_where_the_operator_allows_it(browser: Browser, redis_url: str) -> None:
    """On a narrow screen too. Where nothing may be shared, no button is there."""
    settings = msgspec.structs.replace(demo_settings(), chat=ChatSettings(sharing="anyone"))
    with ScriptedServer(redis_url, settings) as server:
        with visit(browser, server.url) as tab:
            conversation(tab, server)
            address = share(tab)
        with visit(browser, server.url, viewport={"width": 320, "height": 640}) as reader:
            reader.page.goto(address)
            expect(reader.page.locator(".question p")).to_have_text([f"about {SECRET}", "and then?"])
            assert reader.page.evaluate("document.documentElement.scrollWidth") <= 320
    settings = msgspec.structs.replace(demo_settings(), chat=ChatSettings(sharing="off"))
    with ScriptedServer(redis_url, settings) as server, visit(browser, server.url) as tab:
        conversation(tab, server)
        expect(tab.page.get_by_role("button", name="Export")).to_be_visible()
        expect(tab.page.get_by_role("button", name="Share", exact=True)).to_be_hidden()
