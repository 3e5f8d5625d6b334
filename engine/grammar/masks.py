"""Computes the masks of a step's constrained rows while the model runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import numpy as np
from llguidance import LLExecutor

from engine.grammar.matcher import Matcher
from engine.grammar.tokens import Bits
from engine.plan import Row

_SLOW_SECONDS = 0.02
Job = tuple[Matcher, int, tuple[int, ...]]
"""A matcher, the first of its rows, and the draft whose positions it covers."""


class FilledMasks:
    """Masks that are being computed. Implements `engine.plan.TokenMasks`."""

    def __init__(self, offsets: dict[str, int], filling: Future[Bits], fill: Callable[[], Bits]) -> None:
        self.offsets = offsets
        self._filling = filling
        self._fill = fill

    def wait(self) -> Bits:
        """See `engine.plan.TokenMasks`."""
        if self._filling.cancel():
            # On a busy machine the other thread may not even have begun.
            return self._fill()
        return self._filling.result()

    def settle(self) -> None:
        """Wait until nothing is computed any more, however it ended."""
        if not self._filling.cancel():
            wait([self._filling])


class MaskFiller:
    """Computes masks in a thread of its own and in llguidance's, which do not hold Python's lock meanwhile."""

    def __init__(self, vocabulary: int, threads: int = 1) -> None:
        """Masks of `vocabulary` tokens, computed by `threads` threads."""
        self._words = -(-vocabulary // 32)
        self._threads = threads
        self._executor: LLExecutor | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._slow = False
        """Whether the last masks were so slow that the next ones are timed one by one, to find the grammar to blame."""

    def start(self, rows: Iterable[Row]) -> FilledMasks | None:
        """Begin to compute the masks of the rows that sample under a grammar; None if there is none.

        Until the result has been waited for, nothing else may use these requests' matchers.
        """
        jobs: list[Job] = []
        offsets: dict[str, int] = {}
        position = 0
        for row in rows:
            matcher = row.request.matcher
            if matcher is None or not row.sample:
                continue
            assert isinstance(matcher, Matcher)
            jobs.append((matcher, position, row.draft))
            offsets[row.request.id] = position
            position += 1 + len(row.draft)
        if not jobs:
            return None
        fill = partial(self._fill, jobs, position)
        return FilledMasks(offsets, self._thread.submit(fill), fill)

    def close(self) -> None:
        """End the threads."""
        self._thread.shutdown()

    def _fill(self, jobs: list[Job], positions: int) -> Bits:
        bits = np.zeros((positions, self._words), np.int32)
        begun = time.monotonic()
        if self._slow:
            for matcher, first, draft in jobs:
                cpu = time.thread_time()
                matcher.fill(bits[first : first + 1 + len(draft)], draft)
                matcher.charge((time.thread_time() - cpu) / (1 + len(draft)))
        else:
            self._fill_together(bits, jobs)
        self._slow = time.monotonic() - begun > _SLOW_SECONDS
        return bits

    def _fill_together(self, bits: Bits, jobs: list[Job]) -> None:
        if self._executor is None:
            self._executor = LLExecutor(self._threads)
        plain, drafted = [], []
        for matcher, first, draft in jobs:
            if not matcher.is_plain:
                matcher.fill(bits[first : first + 1 + len(draft)], draft)
            elif draft:
                drafted.append((matcher.llguidance, first, list(draft)))
            else:
                plain.append((matcher.llguidance, first))
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, bits.ctypes.data, bits.strides[0], len(bits))
        if drafted:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(
                drafted, bits.ctypes.data, bits.strides[0], len(bits)
            )
