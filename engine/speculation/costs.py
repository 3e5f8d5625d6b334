"""Learns what a step of a model costs from the steps that it ran. Pure: times come in as arguments."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from statistics import median

_WINDOW = 5
"""Number of latest steps of a size whose median is its cost, once three are known.

What makes a step slower than its kind is mostly chance, and the first run of a shape often pays for being the first.
"""
_FRESH = 64
"""Steps after which all but the latest observation of a size have become too old to count."""
_FORGOTTEN = 1024
"""Steps after which a size that was not seen is unknown again: what it cost may have changed."""
_EXACT = 32
"""Largest size that is counted by itself; larger ones are counted in quarters of an octave."""


class StepCosts:
    """Estimates the seconds of a step as a function of the tokens that it runs.

    Small steps cost about the same whatever their size (they read all the weights), large ones grow with it, and the
    point between the two depends on machine, model and load. So nothing is assumed but that sizes in between cost
    something in between.
    """

    def __init__(self) -> None:
        self._sizes: list[float] = []
        """Sizes whose cost is known, sorted."""
        self._seconds: dict[float, float] = {}
        """Cost of each known size."""
        self._recent: dict[float, deque[float]] = {}
        """Seconds of the latest steps of each size."""
        self._latest: dict[float, int] = {}
        """Number of the latest step of each size; the oldest first."""
        self._steps = 0

    def observe(self, tokens: int, seconds: float) -> None:
        """Record that a step of so many tokens took so long."""
        size = _size(tokens)
        known = size in self._seconds
        recent = self._recent.setdefault(size, deque(maxlen=_WINDOW))
        self._steps += 1
        if known and self._steps - self._latest[size] > _FRESH:
            while len(recent) > 1:
                recent.popleft()
        recent.append(seconds)
        self._latest.pop(size, None)
        self._latest[size] = self._steps
        if known or 2 * len(recent) > _WINDOW:
            self._seconds[size] = median(recent)
        if not known and size in self._seconds:
            insort(self._sizes, size)
        oldest = next(iter(self._latest))
        if self._steps - self._latest[oldest] > _FORGOTTEN:
            self._forget(oldest)

    def seconds(self, tokens: int) -> float:
        """Predict the seconds of a step of so many tokens; 0 if nothing is known.

        Beyond the known sizes each token costs as much as between them: rather too little, which lets a size be tried.
        """
        sizes = self._sizes
        if not sizes:
            return 0.0
        size = _size(tokens)
        index = bisect_left(sizes, size)
        if index == len(sizes):
            first, last = sizes[0], sizes[-1]
            if first == last:
                return self._seconds[last] * max(1.0, size / (2 * last))
            slope = (self._seconds[last] - self._seconds[first]) / (last - first)
            return self._seconds[last] + max(slope, 0.0) * (size - last)
        upper = sizes[index]
        if upper == size or index == 0:
            return self._seconds[upper]
        lower = sizes[index - 1]
        share = (size - lower) / (upper - lower)
        return self._seconds[lower] + share * (self._seconds[upper] - self._seconds[lower])

    def _forget(self, size: float) -> None:
        del self._latest[size], self._recent[size]
        if self._seconds.pop(size, None) is not None:
            self._sizes.remove(size)


def _size(tokens: int) -> float:
    """Return the size under which steps of so many tokens are counted."""
    if tokens <= _EXACT:
        return float(tokens)
    return _EXACT * 2 ** (round(4 * math.log2(tokens / _EXACT)) / 4)
