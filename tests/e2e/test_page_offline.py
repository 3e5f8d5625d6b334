"""The chat page without its server: it opens, what the browser keeps can be read, and a question waits."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from gateway.http import page as chat_page
from tests.e2e.browser import Visit, launched, needs_chromium, violations, visit
from tests.e2e.page import answer, answered, ask, connected, reload, watched
from tests.e2e.scripted import Answer, ScriptedServer
from tests.e2e.test_page_history import listed, new_chat
from tests.ports import free_port

pytestmark = needs_chromium

AWAY = "The server cannot be reached. The question is sent when it is back."
HOST = "chat.example.com"
MANY_ATTEMPTS = 60_000
"""Milliseconds in which the page tries to connect again and again."""
AREAS = "uses => uses.map(use => use.getBBox()).map(box => box.width * box.height)"
PRESENT = "navigator.serviceWorker.ready.then(() => true)"
INSTALLED = """async () => {
  const registration = await navigator.serviceWorker.getRegistration();
  while (!registration.waiting) await new Promise((resolve) => setTimeout(resolve, 20));
}"""
KEPT = """async () => {
  const found = [];
  for (const name of await caches.keys()) {
    for (const { url } of await (await caches.open(name)).keys()) found.push(url);
  }
  return found;
}"""


def kept(page: Page) -> set[str]:
    """Paths of everything that the worker keeps."""
    urls: list[str] = page.evaluate(KEPT)
    return {urlsplit(url).path for url in urls}


def installed(tab: Visit) -> None:
    """Open the page, and wait until it opens without its server, too."""
    tab.page.goto("/")
    connected(tab.page)
    assert tab.page.evaluate(PRESENT)


def test_it_opens_and_what_is_kept_is_read_and_found(browser: Browser, redis_url: str) -> None:
    """Colours of code, dialogs and the way of saving too; a question waits, over a reload, and is sent once."""
    port = free_port()
    with visit(browser, f"http://127.0.0.1:{port}", service_workers="allow") as tab:
        page = tab.page
        with ScriptedServer(redis_url, port=port) as server:
            server.pipeline.answers["code"] = Answer(text="```python\nreturn None\n```\n")
            installed(tab)
            ask(page, "code")
            answered(page)
            expect(page.locator(".hljs-keyword")).to_have_text("return")
            new_chat(page)
            ask(page, "second")
            answered(page)
        reload(page)
        expect(page.locator("#connection")).to_have_text("Reconnecting")
        expect(answer(page)).to_have_text("A short answer.")
        page.get_by_label("Search conversations").fill("return")
        expect(listed(page)).to_have_text(["code"])
        listed(page).click()
        expect(page.locator(".hljs-keyword")).to_have_text("return")
        for name in ("Settings", "Prompts"):
            page.get_by_role("button", name=name, exact=True).click()
            expect(page.get_by_role("dialog")).to_be_visible()
            page.keyboard.press("Escape")
        with page.expect_download():
            page.get_by_role("button", name="Export").click()
        ask(page, "later")
        expect(page.locator(".waiting:visible")).to_have_text(AWAY)
        assert violations(page) == []
        reload(page)
        expect(page.locator(".waiting:visible")).to_have_text(AWAY)
        # In another tab, which has no key yet, it waits too.
        other = tab.context.new_page()
        tab.watch(other)
        other.goto("/")
        expect(other.locator("#connection")).to_have_text("Reconnecting")
        ask(other, "elsewhere")
        expect(other.locator(".waiting:visible")).to_have_text(AWAY)
        with ScriptedServer(redis_url, port=port) as server:
            for each in (page, other):
                answered(each)
                expect(answer(each)).to_have_text("A short answer.")
            asked = [turn.conversation[-1].content for turn in server.pipeline.turns]
            assert sorted(asked) == ["elsewhere", "later"]


def test_without_a_network_nothing_is_asked_for(browser: Browser, redis_url: str) -> None:
    """Of a server elsewhere: no request fails, since none is made. The question waits, and is sent once."""
    with ScriptedServer(redis_url) as server:
        url = server.url.replace("127.0.0.1", HOST)
        flags = (f"--host-resolver-rules=MAP {HOST} 127.0.0.1", f"--unsafely-treat-insecure-origin-as-secure={url}")
        with (
            launched(browser.browser_type, *flags, whole=True) as other,
            visit(other, url, service_workers="allow") as tab,
        ):
            page = tab.page
            page.clock.install()
            created = watched(tab)
            assert page.evaluate(PRESENT)
            ask(page, "first")
            answered(page)
            expect(page.get_by_role("button", name="Good answer")).to_be_visible()
            failed: list[str] = []
            tab.context.on("requestfailed", lambda request: failed.append(request.url))
            tab.context.set_offline(True)
            expect(page.locator("#connection")).to_have_text("Reconnecting")
            page.clock.run_for(MANY_ATTEMPTS)
            page.get_by_role("button", name="Good answer").click()
            expect(page.get_by_role("button", name="Good answer")).to_have_attribute("aria-pressed", "false")
            ask(page, "later")
            expect(page.locator(".waiting:visible")).to_have_text(AWAY)
            for name in ("Settings", "Prompts"):
                page.get_by_role("button", name=name, exact=True).click()
                expect(page.get_by_role("dialog")).to_be_visible()
                page.keyboard.press("Escape")
            for _ in range(2):
                areas: list[float] = page.locator("svg:visible use").evaluate_all(AREAS)
                assert areas and all(areas)
                page.clock.run_for(MANY_ATTEMPTS)
                reload(page)
                expect(page.locator(".waiting:visible")).to_have_text(AWAY)
            assert failed == []
            assert [event["input"] for event in created] == [[{"role": "user", "content": "first"}]]
            tab.context.set_offline(False)
            page.clock.run_for(MANY_ATTEMPTS)
            answered(page)
            assert [event["input"] for event in created[1:]] == ["later"]
            assert [turn.conversation[-1].content for turn in server.pipeline.turns] == ["first", "later"]


def test_only_the_page_and_its_files_are_kept(browser: Browser, server: ScriptedServer) -> None:
    """No answer of the API, and no other page."""
    with visit(browser, server.url, service_workers="allow") as tab:
        installed(tab)
        ask(tab.page, "hello")
        answered(tab.page)
        reload(tab.page)
        connected(tab.page)
        other = {path for path in kept(tab.page) if not path.startswith(f"/static/{chat_page.FILES.digest}/")}
        assert other == {"/"}


def test_a_new_release_replaces_the_old_one_whole(
    whole_browser: Browser, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows at once; the old one's files go when no page of it is open any more."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        shutil.copytree(chat_page.STATIC, folder)
    bar = folders[1] / "js" / "bar.js"
    bar.write_text(bar.read_text("utf-8").replace('"Connected"', '"Connected anew"'), "utf-8")
    with ScriptedServer(redis_url) as server, visit(whole_browser, server.url, service_workers="allow") as tab:
        release(monkeypatch, folders[0])
        installed(tab)
        first = chat_page.FILES.digest
        release(monkeypatch, folders[1])
        tab.page.reload()
        expect(tab.page.locator("#connection")).to_have_text("Connected anew")
        tab.page.evaluate(INSTALLED)
        second = chat_page.FILES.digest
        assert {path.split("/")[2] for path in kept(tab.page) if path != "/"} == {first, second}
        while len(tab.page.evaluate("() => caches.keys()")) > 1:  # Chromium takes its time to see that nobody is left
            tab.page.goto("about:blank")
            tab.page.goto("/")
            expect(tab.page.locator("#connection")).to_have_text("Connected anew")
        assert {path.split("/")[2] for path in kept(tab.page) if path != "/"} == {second}


def release(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have the server's files come from a folder, as if it had been started anew."""
    empty: dict[str, object] = {"_folder": folder, "_files": {}, "_pages": {}, "_workers": {}, "digest": ""}
    for name, value in empty.items():
        monkeypatch.setattr(chat_page.FILES, name, value)
