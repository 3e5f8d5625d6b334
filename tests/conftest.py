"""Fixtures that tests of several folders share."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from gateway.models.catalogue import catalogue
from gateway.models.store import ModelStore, default_folder
from gateway.processes.redis_server import bundled
from tests.costs import Budget, Costs
from tests.embedder import EmbedderProcess, embedder_process

# The same examples in every run, and no limit on their time: a slow machine is no failure. `make test-deep` looks for
# others each time, and for more of them: a failure prints how to see it again.
settings.register_profile("roundhouse", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("deep", deadline=None, derandomize=False, max_examples=500, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "roundhouse"))

# Where a test names no pools, the small model of this repository is served, and nothing is fetched.
os.environ["ROUNDHOUSE_MODELS_SERVE"] = ""

TOGETHER = {
    "a whole installation": (
        "tests/e2e/test_page.py",
        "tests/e2e/test_page_compare.py",
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
    "an embedder": (
        "tests/gateway/http/test_embeddings.py",
        "tests/gateway/pipeline/routing/test_tiers.py",
        "tests/gateway/pipeline/sources/test_semantic_cache.py",
        "tests/cache/embedding/test_embedder.py",
        "tests/cache/embedding/test_store.py",
    ),
}
"""Files that share a fixture which takes a core for many seconds: one process runs them all."""

SLOW_FIRST = (
    *TOGETHER["a whole installation"],
    *TOGETHER["an embedder"],
    "tests/e2e",
    "tests/chaos/test_run",
    "tests/deploy/ray",
    "tests/gateway/turns",
    "tests/gateway/config/test_reload",
    "tests/engine/test_oracle",
    "tests/kernels",
    "tests/bench",
    "tests/gateway/a",
    "tests/gateway/c",
    "tests/gateway/http",
    "tests/gateway/models",
    "tests/gateway/pipeline",
)
"""Beginnings of the paths of files that take long, so that all processes end at about the same time."""


class ByFile(LoadScopeScheduling):
    """Gives a process whole files, or those of `TOGETHER`, so that what their tests share is made once."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return next((shared for shared, files in TOGETHER.items() if file in files), file)


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGTERM end the tests like Ctrl-C, so that fixtures stop their processes and remove their folders."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config.pluginmanager.register(Costs(Budget.read(Path(__file__).with_name("budget.toml"))), "costs")


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
    """Order whole files, which one process runs one after the other, the longest first."""

    def place(item: pytest.Item) -> int:
        places = (place for place, begins in enumerate(SLOW_FIRST) if item.nodeid.startswith(begins))
        return next(places, len(SLOW_FIRST))

    items.sort(key=place)


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
