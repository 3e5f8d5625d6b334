"""Waits for loads of KV blocks from host memory in a thread of its own, so that no step does."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

from engine.cache.host_tier import Save
from engine.scheduling.host_loads import HostLoad

logger = logging.getLogger(__name__)


class HostMemory(Protocol):
    """`blocks` slots of host memory, each as large as a block on the device. The core's thread calls both methods."""

    @property
    def blocks(self) -> int: ...

    @property
    def block_bytes(self) -> int: ...

    def save(self, saves: Sequence[Save]) -> None:
        """Copy blocks to slots, in this order, before anything that is begun later writes to the blocks."""
        ...

    def begin_load(self, slots: Sequence[int], blocks: Sequence[int]) -> Callable[[], None]:
        """Copy slots to blocks, which belong to this load alone. What is returned does it, or waits for it, and may be
        called in any thread; when it has returned, steps that begin later see the blocks' content.
        """
        ...


class HostLoader:
    """Does loads in order. `done` is called in its thread after each; whoever submits them takes the results."""

    def __init__(self, memory: HostMemory, done: Callable[[], None]) -> None:
        self.memory = memory
        self._done = done
        self._thread = ThreadPoolExecutor(1, "kv loader")
        self._ended: queue.SimpleQueue[tuple[HostLoad, bool]] = queue.SimpleQueue()

    @property
    def ready(self) -> bool:
        """Whether there are results to take."""
        return not self._ended.empty()

    def submit(self, load: HostLoad) -> None:
        """Have a load done; returns at once."""
        finish = self.memory.begin_load(load.slots, load.blocks)
        self._thread.submit(finish).add_done_callback(partial(self._end, load))

    def take(self) -> list[tuple[HostLoad, bool]]:
        """Loads that have ended since the last call, and whether they failed."""
        taken = []
        while not self._ended.empty():  # nobody else takes from it
            taken.append(self._ended.get_nowait())
        return taken

    def close(self) -> None:
        """End the thread; loads that it has not begun are given up."""
        self._thread.shutdown(cancel_futures=True)

    def _end(self, load: HostLoad, future: Future[None]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            # Its request computes what it did not get.
            logger.error("KV could not be loaded from host memory", exc_info=error)
        self._ended.put((load, error is not None))
        self._done()
