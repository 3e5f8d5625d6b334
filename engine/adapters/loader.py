"""Runs the loads of adapters in a thread of its own, so that no step waits for one."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

from engine.adapters.config import AdapterError
from engine.adapters.loads import Bank, Install, Job, Prepare
from engine.request import RequestError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of a load."""

    job: Job
    sectors: int = 0
    """Number of sectors that the adapter needs, after a `Prepare`."""
    error: RequestError | None = None
    """Reason of a failure, in words for clients."""


class Loader:
    """One thread that runs loads in order, copies to the device first: they are short, and complete an adapter.

    `done` is called in it after each load; the thread that submits loads takes the results.
    """

    def __init__(self, bank: Bank, done: Callable[[], None]) -> None:
        self._bank = bank
        self._done = done
        self._jobs: queue.PriorityQueue[tuple[int, int, Job | None]] = queue.PriorityQueue()
        self._submitted = count()
        self._results: queue.SimpleQueue[Loaded] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> bool:
        """Whether there are results to take."""
        return not self._results.empty()

    def submit(self, job: Job) -> None:
        """Queue a load; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="adapter loader", daemon=True)
            self._thread.start()
        self._jobs.put((isinstance(job, Prepare), next(self._submitted), job))

    def remove(self, versions: Iterable[str]) -> None:
        """Remove these copies on the device, which are not valid any more."""
        for version in versions:
            self._bank.remove(version)

    def forget(self, versions: Iterable[str]) -> None:
        """Drop these copies on the host, which are not needed any more."""
        for version in versions:
            self._bank.forget(version)

    def take(self) -> list[Loaded]:
        """Return the results since the last call."""
        taken = []
        while not self._results.empty():  # nobody else takes from it
            taken.append(self._results.get_nowait())
        return taken

    def close(self) -> None:
        """End the thread after its current load; loads that it has not begun are given up."""
        if self._thread is not None:
            self._jobs.put((-1, 0, None))
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (job := self._jobs.get()[2]) is not None:
            self._results.put(self._load(job))
            self._done()

    def _load(self, job: Job) -> Loaded:
        try:
            if isinstance(job, Install):
                self._bank.install(job.version, job.sectors)
                return Loaded(job)
            return Loaded(job, self._bank.prepare(job.version))
        except AdapterError as error:
            return Loaded(job, error=RequestError(str(error), field="adapter"))
        except Exception:
            # Whatever an adapter does to the bank ends the requests that name it, never the engine.
            stage = "prepared" if isinstance(job, Prepare) else "copied to the device"
            logger.exception("adapter %s could not be %s", job.version, stage)
            message = f"{job.version!r} could not be {stage}; try again, and tell the operator if it stays so"
            return Loaded(job, error=RequestError(message, "internal", field="adapter"))
