"""A whole Roundhouse: `roundhouse serve` with this repository's model, as a user starts it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from gateway.config.settings import TIERS, demo_settings
from tests.e2e.browser import Visit, visit
from tests.e2e.page import connected
from tests.e2e.pages import Pages
from tests.e2e.scripted import ScriptedServer
from tests.ports import free_port

KEY = "roundhouse-demo"
DEADLINE = 90.0

_RUNNING: set[Installation] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, pytest.TestReport]:
    """Show with a failure what the installations have logged during the test."""
    report: pytest.TestReport = yield
    for running in _RUNNING if call.when == "call" else ():
        logged = running.logged()
        if report.failed:
            report.sections.append((f"log of {running.url}", logged))
    return report


class Installation:
    """A running `roundhouse serve` with a data folder of its own.

    Args:
        tiers: tiers to start, each of which takes a core for seconds, and all of which have this repository's model;
            none: what is served is up to `tables` or `environment`.
        served: more tiers with this model, and the addresses of engines that run already.
        tables: more of its configuration.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        tiers: Sequence[str] = TIERS,
        served: Mapping[str, str] = MappingProxyType({}),
        tables: str = "",
        **environment: str,
    ) -> None:
        # Unix sockets need short paths, which pytest's own folders are not.
        self.folder = Path(tempfile.mkdtemp(prefix="rh-e2e-"))
        self.port = port or free_port()
        self.log = self.folder / "log"
        if tiers or served or tables:
            environment["ROUNDHOUSE_CONFIG"] = str(self.folder / "roundhouse.toml")
            Path(environment["ROUNDHOUSE_CONFIG"]).write_text(_configuration(tiers, served) + tables)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "REDIS_"))}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "serve", "--port", str(self.port)],
                stdout=subprocess.PIPE,
                bufsize=0,  # a line in a buffer of ours is none that `select` sees
                stderr=log,
                env={
                    **clean,
                    "ROUNDHOUSE_MODELS_SERVE": "",
                    "ROUNDHOUSE_REDIS_DATA": str(self.folder / "data"),
                    # Only tests of embeddings need it, and loading it takes a core for seconds.
                    "ROUNDHOUSE_EMBEDDER_ENABLED": "false",
                    # On a machine whose cores are all taken Redis is slow, and not gone.
                    "ROUNDHOUSE_REDIS_TIMEOUT": "1",
                    **environment,
                },
            )
        self._logged = 0
        _RUNNING.add(self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> str:
        return f"{self.url}/v1"

    @property
    def socket(self) -> str:
        """Address of the WebSocket."""
        return f"ws://127.0.0.1:{self.port}/v1/responses"

    def wait_ready(self) -> str:
        """Read the output until the URL is printed; returns all of it."""
        return self.wait_said(f"open {self.url}")

    def wait_said(self, what: str) -> str:
        """Read the output until a line has these words; returns all that was not read before."""
        assert self.process.stdout
        output, deadline = "", time.monotonic() + DEADLINE
        while what not in output:
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            line = self.process.stdout.readline().decode() if readable else ""
            if not line:
                raise AssertionError(f"it never said {what!r}:\n{output}\n{self.log.read_text()}")
            output += line
        return output

    def pids(self, name: str) -> list[int]:
        """Processes of this installation whose command line holds `name`."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if str(self.folder) in words and re.search(name, words):
                    found.append(int(entry.parent.name))
        return found

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, return the exit status."""
        self.process.send_signal(how)
        return self.process.wait(timeout=DEADLINE)

    def logged(self) -> str:
        """What it has logged since this was asked before."""
        with self.log.open("rb") as log:
            log.seek(self._logged)
            found = log.read()
        self._logged += len(found)
        return found.decode(errors="replace")

    def close(self) -> None:
        """End it in whatever state it is, and remove its folder."""
        _RUNNING.discard(self)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def installation(
    *,
    tiers: Sequence[str] = TIERS,
    served: Mapping[str, str] = MappingProxyType({}),
    tables: str = "",
    **environment: str,
) -> Iterator[Installation]:
    """Start a Roundhouse, and wait until it is ready."""
    running = Installation(tiers=tiers, served=served, tables=tables, **environment)
    try:
        running.wait_ready()
        yield running
    finally:
        running.close()


@pytest.fixture(scope="session")
def roundhouse(engine: str) -> Iterator[Installation]:
    """One Roundhouse with three tiers, shared by tests that leave it as they found it."""
    with installation(tiers=("small", "large"), served={"medium": engine}) as running:
        yield running


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    """Address of an engine with this repository's model, for installations whose tests are not about their engines."""
    [pool] = demo_settings().pools
    folder = Path(tempfile.mkdtemp(prefix="rh-engine-"))
    command = ["-m", "engine.server", "--model", pool.model, "--threads", "1", "--listen", f"unix://{folder}/socket"]
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline()
            yield f"unix://{folder}/socket"
        finally:
            process.kill()
    shutil.rmtree(folder)


NAMES = {"small": "roundhouse-demo-2m", "medium": "roundhouse-demo-medium", "large": "roundhouse-demo-large"}
"""What the tiers' models are called."""


def _configuration(tiers: Sequence[str], served: Mapping[str, str]) -> str:
    """The embedded default, but with its model in these tiers; the large one drafts."""
    demo = demo_settings()
    [tenant] = demo.tenants
    [key] = tenant.keys
    [pool] = demo.pools
    lines = [f'[[tenants]]\nname = "{tenant.name}"\nkeys = [{{ id = "{key.id}", sha256 = "{key.sha256}" }}]']
    for tier in (each for each in TIERS if each in served or each in tiers):
        lines.append(f'[[pools]]\ntier = "{tier}"\nname = "{NAMES[tier]}"\nmodel = "{pool.model}"')
        if tier in served:
            lines.append(f'engines = ["{served[tier]}"]')
    if "large" in tiers:
        lines += ['speculate = "auto"', f'draft_model = "{pool.model}"']
    return "\n".join(lines)


@pytest.fixture
def server(pages: Pages) -> ScriptedServer:
    """The scripted server, as it is at its start but for what is in Redis."""
    server = pages.server
    server.pipeline.answers.clear()
    server.pipeline.turns.clear()
    server.pipeline.room = None
    return server


@pytest.fixture
def tab(browser: Browser, server: ScriptedServer) -> Iterator[Visit]:
    with visit(browser, server.url) as tab:
        tab.page.goto("/")
        connected(tab.page)
        yield tab


@pytest.fixture(scope="module")
def page(pages: Pages) -> Iterator[Page]:
    """A page whose modules can be imported."""
    with visit(pages.browser, pages.server.url) as tab:
        tab.page.goto("/")
        yield tab.page
