"""What tests of the pages share in one process."""

from __future__ import annotations

import contextlib
from functools import cached_property

import pytest
from playwright.sync_api import Browser

from tests.e2e.browser import chromium, launched
from tests.e2e.scripted import ScriptedServer
from tests.ports import free_port


class Pages:
    """A Chromium and a scripted server, which start when they are asked for.

    As a plugin, it ends them before a test of anything else: Playwright's event loop counts as running in this thread,
    so that no other one could, and the server draws from `random` in a thread of its own.
    """

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._running = contextlib.ExitStack()
        self.port = free_port()
        """For a server of a test's own."""

    @cached_property
    def browser(self) -> Browser:
        return self._running.enter_context(chromium())

    @cached_property
    def whole_browser(self) -> Browser:
        """For the few tests to which the difference matters."""
        return self._running.enter_context(launched(self.browser.browser_type, whole=True))

    @cached_property
    def server(self) -> ScriptedServer:
        return self._running.enter_context(ScriptedServer(self._redis_url))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Function) -> None:
        if "pages" not in item.fixturenames:
            self.close()

    def close(self) -> None:
        self._running.close()
        for name in ("browser", "whole_browser", "server"):
            self.__dict__.pop(name, None)
