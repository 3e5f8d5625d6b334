"""The pages in headless Chromium: browsers, and visits to pages.

A new context and its processes take a core for two seconds, a page that is loaded again for half a second. So visits
one after the other share a context, whose page is emptied in between.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import axe_playwright_python
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    BrowserType,
    ConsoleMessage,
    Error,
    Page,
    Response,
    expect,
    sync_playwright,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SHELL = shutil.which("chromium-headless-shell") or CHROMIUM
"""Chromium without what draws windows: the same page for two thirds of the time."""

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no Chromium on the PATH: the page was not tested. On Debian or Ubuntu: sudo apt-get install chromium",
)

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--in-process-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A headless Chromium with a profile of its own, and these flags beside the usual ones."""
    with sync_playwright() as playwright, launched(playwright.chromium, *flags) as browser:
        yield browser


def launched(chromium: BrowserType, *flags: str, whole: bool = False) -> Browser:
    """As `chromium`, where another one runs already; a context manager that closes it.

    Args:
        whole: as people have it, which scrolls by keys, draws and goes offline in ways of its own.
    """
    program = CHROMIUM if whole else SHELL
    return chromium.launch(executable_path=program, headless=True, args=[*FLAGS, *flags])


PATIENCE = 60_000
"""Milliseconds until something that is waited for counts as missing; long, for machines that do much else."""

expect.set_options(timeout=PATIENCE)

NETWORK = ("Failed to load resource", "WebSocket connection to")
"""Messages of the browser itself about connections that tests cut and requests that tests have refused. Files of the
pages are never refused: `Visit` looks at their answers."""


class Visit:
    """A tab in a context of its own. `faults` collects what must stay empty: exceptions and console errors, breaches
    of the content security policy among them."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        # What a worker answers, a test cannot hold or change: those that are about the worker allow it.
        options.setdefault("service_workers", "block")
        self.context: BrowserContext = browser.new_context(base_url=url, **options)
        self.context.set_default_timeout(PATIENCE)
        self.page: Page = self.context.new_page()
        self.faults: list[str] = []
        self.hosts: set[str] = set()
        self.watch(self.page)

    def watch(self, page: Page) -> None:
        """Collect the faults of another tab of the context, too."""
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._on_console)
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        page.on("response", self._on_response)

    def _on_response(self, response: Response) -> None:
        if "/static/" in response.url and response.status >= 400:
            self.faults.append(f"{response.status} for {response.url}")

    def _on_console(self, said: ConsoleMessage) -> None:
        if said.type == "error" and not said.text.startswith(NETWORK):
            self.faults.append(said.text)

    def begin(self, *, permissions: Sequence[str] = (), **look: Any) -> None:
        """Set what can be set at any time; as a new context has it where nothing is said.

        Args:
            look: of the page, as a context's options name it.
        """
        self.page.set_viewport_size(look.pop("viewport", SIZE))
        self.page.emulate_media(**{"color_scheme": "light", "reduced_motion": "reduce", **look})
        if permissions:
            self.context.grant_permissions(permissions)

    def empty(self) -> bool:
        """Take back all that was done in this context, but for files in its cache; whether that was possible."""
        page, context = self.page, self.context
        try:
            for other in context.pages:
                if other is not page:
                    other.close()
            context.set_offline(False)
            context.unroute_all()
            page.unroute_all()
            page.goto(NOTHING)
            session = context.new_cdp_session(page)
            if not page.evaluate("/native code/.test(Date)"):
                return False  # a clock that a test has installed stays
            origin = page.evaluate("sessionStorage.clear(); origin")
            session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
            session.send("Page.resetNavigationHistory")
            session.detach()
            context.clear_cookies()
            context.clear_permissions()
            page.mouse.move(0, 0)
        except Error:
            return False
        for event in HEARD:
            page._impl_obj.remove_all_listeners(event)
        self.faults, self.hosts = [], set()
        self.watch(page)
        return True


LOOK = ("viewport", "color_scheme", "reduced_motion", "permissions")
"""Options that `Visit.begin` takes."""
SIZE = {"width": 1280, "height": 720}
HEARD = ("console", "dialog", "download", "pageerror", "popup", "request", "requestfailed", "requestfinished")
HEARD += ("response", "websocket")
NOTHING = "/static/icon.svg"
"""What an emptied page shows: nothing that runs, but with the origin and in the process of the pages."""

_emptied: WeakKeyDictionary[Browser, dict[object, list[Visit]]] = WeakKeyDictionary()
"""Tabs for later visits, by what they were made for."""


@contextlib.contextmanager
def visit(browser: Browser, url: str, *, first: bool = False, **options: Any) -> Iterator[Visit]:
    """A tab that must end without an error of the page's; `options` are a Playwright context's.

    Args:
        first: whether the browser has no file of the page yet. It is in a context of its own, as is one with a worker.
    """
    look = {name: options.pop(name) for name in LOOK if name in options}
    if options.get("locale") == "en-US":
        del options["locale"]  # which is that of any context
    alone = first or "service_workers" in options
    kept = _emptied.setdefault(browser, {}).setdefault((url, *sorted(options.items())), [])
    tab = kept.pop() if kept and not alone else Visit(browser, url, **options)
    try:
        tab.begin(**look)
        yield tab
        assert not tab.faults, tab.faults
        if not alone and tab.empty():
            kept.append(tab)
    finally:
        if tab not in kept:
            tab.context.close()


AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8")
VIOLATIONS = """(rules) => axe.run(document, { resultTypes: ["violations"], rules }).then(({ violations }) =>
  violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html}`)))"""


def violations(page: Page, *, colours: bool = True) -> list[str]:
    """What axe has to say, a line each; what is only half faded in has no contrast yet.

    Args:
        colours: whether contrast counts, which takes most of the time and is the same in any language.
    """
    page.emulate_media(reduced_motion="reduce")
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    found: list[str] = page.evaluate(VIOLATIONS, {"color-contrast": {"enabled": colours}})
    return found
