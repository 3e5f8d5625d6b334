"""The thread that loads adapters."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator

import pytest

from engine.adapters.loader import Loaded, Loader
from engine.adapters.loads import Install, Prepare
from tests.engine.adapters.ledger_bank import LedgerBank

TIMEOUT = 30


class Loading:
    """A loader whose results a test can wait for."""

    def __init__(self, bank: LedgerBank) -> None:
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.threads: list[int] = []
        self.loader = Loader(bank, self._note)

    def _note(self) -> None:
        self.threads.append(threading.get_ident())
        self._done.put(1)

    def results(self, count: int) -> list[Loaded]:
        for _ in range(count):
            self._done.get(timeout=TIMEOUT)
        return self.loader.take()


@pytest.fixture
def loading() -> Iterator[Loading]:
    loading = Loading(LedgerBank(8, {"v": 3}))
    yield loading
    loading.loader.close()


def test_jobs_are_done_in_order_in_another_thread(loading: Loading) -> None:
    for version in "vwx":
        loading.loader.submit(Prepare(version))
    assert loading.results(3) == [Loaded(Prepare("v"), 3), Loaded(Prepare("w"), 1), Loaded(Prepare("x"), 1)]
    loading.loader.submit(Install("v", [0, 1, 2]))
    assert loading.results(1) == [Loaded(Install("v", [0, 1, 2]))]
    assert not loading.loader.ready
    assert set(loading.threads).isdisjoint({threading.get_ident()})


def test_submitting_does_not_wait_for_the_load() -> None:
    gate = threading.Event()

    class Slow(LedgerBank):
        def prepare(self, version: str) -> int:
            assert gate.wait(TIMEOUT)
            return super().prepare(version)

    loading = Loading(Slow(8))
    loading.loader.submit(Prepare("v"))
    assert not loading.loader.ready
    gate.set()
    assert loading.results(1) == [Loaded(Prepare("v"), 1)]
    loading.loader.close()


def test_what_is_wrong_with_an_adapter_is_for_the_client(loading: Loading) -> None:
    loading.loader.submit(Prepare("bad"))
    (loaded,) = loading.results(1)
    assert loaded.error is not None
    assert (str(loaded.error), loaded.error.kind) == ("adapter: is not registered", "invalid")


@pytest.mark.parametrize("job", [Prepare("broken"), Install("unlucky", [0])])
def test_what_is_wrong_with_the_engine_is_for_its_log(
    loading: Loading, job: Prepare | Install, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        loading.loader.submit(Prepare("unlucky"))
        loading.results(1)
        loading.loader.submit(job)
        (loaded,) = loading.results(1)
    assert loaded.error is not None
    assert loaded.error.kind == "internal"
    assert "try again" in str(loaded.error)
    assert "secret" not in str(loaded.error)
    assert "Traceback" in caplog.text


def test_the_thread_survives_a_load_that_fails(loading: Loading) -> None:
    for version in ("broken", "v"):
        loading.loader.submit(Prepare(version))
    assert loading.results(2)[1] == Loaded(Prepare("v"), 3)


def test_a_loader_without_jobs_has_no_thread() -> None:
    before = threading.active_count()
    loader = Loader(LedgerBank(8), lambda: None)
    assert threading.active_count() == before
    loader.close()


class Held(LedgerBank):
    """Is held up in its first load until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__(8)
        self.entered, self.gate = threading.Event(), threading.Event()

    def prepare(self, version: str) -> int:
        self.entered.set()
        assert self.gate.wait(TIMEOUT)
        return super().prepare(version)


def test_copies_to_the_device_go_first() -> None:
    bank = Held()
    loading = Loading(bank)
    bank.host.add("w")
    for job in (Prepare("v"), Prepare("x"), Install("w", [1])):
        loading.loader.submit(job)
        assert bank.entered.wait(TIMEOUT)
    bank.gate.set()
    assert [loaded.job for loaded in loading.results(3)] == [Prepare("v"), Install("w", [1]), Prepare("x")]
    loading.loader.close()


def test_closing_ends_the_thread_after_the_load_it_is_at() -> None:
    before = threading.active_count()
    bank = Held()
    loader = Loader(bank, lambda: None)
    for version in "vwx":
        loader.submit(Prepare(version))
    assert bank.entered.wait(TIMEOUT)
    threading.Timer(0.05, bank.gate.set).start()
    loader.close()
    assert bank.log == ["prepare v"]
    assert loader.take() == [Loaded(Prepare("v"), 1)]
    bank.gate.set()
    while threading.active_count() > before:  # the timer's
        pass
