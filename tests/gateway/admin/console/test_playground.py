"""The playground: one question to several models, and the request as a program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e import keyboard
from tests.e2e.browser import Visit, needs_chromium
from tests.gateway.admin.conftest import OPERATOR, Shop
from tests.gateway.admin.console.pages import open_view, sign_in, wait_until

pytestmark = needs_chromium


@pytest.fixture
def chatting(operator: httpx2.Client) -> str:
    """A key of the shop's that may chat and see the console."""
    body = {"scopes": ["chat", "admin:read"]}
    return str(operator.post("/tenants/shop/keys", json=body).raise_for_status().json()["key"])


def ask(page: Page, *models: str) -> None:
    """By keys alone."""
    keyboard.write(page.get_by_label("Question"), "It's said: hello")
    for number, model in enumerate(models, 1):
        keyboard.choose(page.get_by_label(f"Model {number}"), model)
    keyboard.write(page.get_by_label("Most tokens of an answer"), "8")
    keyboard.press(page.get_by_role("button", name="Ask"))


def test_answers_stand_side_by_side_with_what_they_took(tab: Visit, chatting: str) -> None:
    """A model that is named twice is asked once."""
    page = tab.page
    sign_in(page, chatting)
    open_view(page, "#/playground", "Playground")
    ask(page, "small", "tiny-small", "small")
    expect(page.get_by_text("All answers have ended.")).to_be_visible()
    keyboard.kept(page)
    lanes = page.locator(".lane")
    expect(lanes).to_have_count(2)
    for lane, name in zip(lanes.all(), ("small", "tiny-small"), strict=True):
        expect(lane.get_by_role("heading")).to_have_text(name)
        expect(lane).to_contain_text("tiny-small (small)")
        expect(lane.locator("div", has_text="Tokens written").last).to_contain_text("8")
        expect(lane).to_contain_text("First token")
        expect(lane.locator(".text")).not_to_be_empty()


def test_a_running_answer_is_stopped(tab: Visit, chatting: str) -> None:
    """Of one whose answer does not come."""
    page = tab.page
    sign_in(page, chatting)
    open_view(page, "#/playground", "Playground")
    held: list[Route] = []
    page.route("**/v1/responses", lambda route: held.append(route))
    ask(page, "small")
    expect(page.get_by_text("1 of 1 answers are under way.")).to_be_visible()
    keyboard.press(page.get_by_role("button", name="Stop"))
    expect(page.locator(".lane")).to_contain_text("Stopped.")
    expect(page.get_by_text("All answers have ended.")).to_be_visible()


def test_a_refusal_is_a_sentence(tab: Visit, shop: Shop, chatting: str, operator: httpx2.Client) -> None:
    used_up = {"quota": {"requests_per_minute": 1}}
    operator.put("/tenants/shop/quotas", json=used_up, headers={"if-match": "*"}).raise_for_status()
    asked = {"headers": {"authorization": f"Bearer {chatting}"}, "json": {"model": "small", "input": "hello"}}
    wait_until(lambda: httpx2.post(f"{shop.url}/v1/responses", timeout=30, **asked).is_error)
    page = tab.page
    sign_in(page, chatting)
    open_view(page, "#/playground", "Playground")
    ask(page, "small")
    expect(page.get_by_role("alert")).to_contain_text("Your organisation's questions of this minute are used up.")


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on the PATH: the command was not run")
def test_the_request_is_a_command_and_a_program(tab: Visit, chatting: str) -> None:
    """Both run as they stand."""
    page = tab.page
    sign_in(page, chatting)
    open_view(page, "#/playground", "Playground")
    ask(page, "small")
    for summary in ("As curl", "As Python"):
        keyboard.press(page.locator("summary", has_text=summary))
    command, program = page.locator("main pre").all_inner_texts()
    environment = {**os.environ, "KEY": chatting}
    options: dict[str, Any] = {"env": environment, "capture_output": True, "check": True, "text": True, "timeout": 60}
    answered = json.loads(subprocess.run(["bash", "-c", command], **options).stdout)
    assert answered["usage"]["output_tokens"] == 8
    assert subprocess.run([sys.executable, "-c", program], **options).stdout.strip()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    keyboard.press(page.get_by_role("button", name="Copy").last)
    expect(page.get_by_text("Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == program


def test_without_the_scope_nobody_is_asked(tab: Visit) -> None:
    sign_in(tab.page, OPERATOR)
    open_view(tab.page, "#/playground", "Playground")
    expect(tab.page.get_by_text("a key needs the scope chat")).to_be_visible()
    expect(tab.page.get_by_role("button", name="Ask")).to_have_count(0)
