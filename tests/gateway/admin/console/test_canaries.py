"""A canary that fails, in the console: taken out while somebody looks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browser import needs_chromium, visit
from tests.gateway.admin.conftest import CHAT, OPERATOR, Administer
from tests.gateway.admin.console.pages import open_view, row, sign_in
from tests.gateway.conftest import EngineThread
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.thread import ServingThread

pytestmark = needs_chromium

TARGETS = [{"model": "tiny-small", "weight": 1}, {"model": "tiny-medium", "weight": 1}]


@contextlib.asynccontextmanager
async def serving(administer: Administer, engine: EngineThread, folder: Path) -> AsyncIterator[str]:
    """A gateway with the route `assistant`, whose canary's engine breaks off every answer -> its address."""
    broken = FrameEngine(folder / "broken.sock", {None: 5})
    broken.failing = True
    async with (
        broken.serving(),
        administer(engines={"small": [engine.address], "medium": [broken.address]}) as api,
    ):
        (await api.operator.post("/routes", json={"name": "assistant", "targets": TARGETS})).raise_for_status()
        yield api.served.url


@pytest.fixture
def url(administer: Administer, engine: EngineThread, unsignalled: None, tmp_path: Path) -> Iterator[str]:
    with ServingThread(partial(serving, administer, engine, tmp_path)) as url:
        yield url


def test_a_canary_that_fails_is_shown_as_taken_out(browser: Browser, url: str) -> None:
    """With the evidence, without a reload; the overview says so, too. Then all conversations are answered."""
    with (
        visit(browser, url) as tab,
        httpx2.Client(base_url=url, headers={"authorization": f"Bearer {CHAT}"}, timeout=30) as client,
    ):
        page = tab.page
        answered = 0

        def ask(number: int) -> bool:
            asked = {"model": "assistant", "input": f"Question {number}?", "max_output_tokens": 2}
            return client.post("/v1/responses", json=asked).is_success

        sign_in(page, OPERATOR, "#/routes/assistant")
        trial = row(page, "tiny-medium")
        expect(trial).to_contain_text("on trial")
        page.evaluate("document.documentElement.dataset.loaded = 'once'")
        for number in range(300):
            answered += ask(number)
            if "taken out" in trial.inner_text():
                break
        expect(trial).to_contain_text("taken out for failures on")
        expect(trial).to_contain_text(re.compile(r": [\d,]+ of [\d,]+, evidence [\d,]+"))
        expect(page.locator("[data-loaded='once']")).to_have_count(1)
        assert answered > 0
        assert all(ask(number) for number in range(1000, 1010))
        open_view(page, "#/", "Overview")
        expect(page.get_by_role("listitem").filter(has_text="the canary tiny-medium of assistant")).to_be_visible()
