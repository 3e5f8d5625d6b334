"""What a step of a model costs, learnt from the steps that it ran. Pure: times come in as arguments."""

from __future__ import annotations

import math
from bisect import bisect_left, insort

_TRUSTED = 3
"""Observations before a size counts: the first run of a shape often pays for being the first."""
_DOWN, _UP = 0.3, 0.1
"""Weights of an observation below and above the estimate: what makes a step slower than its kind is mostly chance."""
_FRESH = 64
"""Steps after which an estimate is half as good as a new one."""
_FORGOTTEN = 1024
"""Steps after which an estimate is dropped: what is not seen any more may have changed."""
_EXACT = 32
"""Sizes up to here are told apart; larger ones in quarters of an octave."""


class StepCosts:
    """Seconds of a step as a function of the tokens that it runs.

    Small steps cost about the same whatever their size (they read all the weights), large ones grow with it, and where
    the one becomes the other depends on machine, model and load. So nothing is assumed but that sizes in between cost
    something in between.
    """

    def __init__(self) -> None:
        self._sizes: list[float] = []
        """Sizes whose cost is known, sorted, and their costs."""
        self._seconds: dict[float, float] = {}
        self._observed: dict[float, int] = {}
        self._latest: dict[float, int] = {}
        self._steps = 0
        """Observations of each size, the step of the latest one (longest ago first), and steps so far."""

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        size = _size(tokens)
        count = self._observed[size] = self._observed.get(size, 0) + 1
        known = self._seconds.setdefault(size, seconds)
        self._steps += 1
        age = (self._steps - self._latest.pop(size, self._steps)) / _FRESH
        self._latest[size] = self._steps
        weight = min((_DOWN if seconds < known else _UP) * (1 + age), 0.5)
        self._seconds[size] += weight * (min(seconds, 2 * known) - known)
        if count == _TRUSTED:
            insort(self._sizes, size)
        oldest = next(iter(self._latest))
        if self._steps - self._latest[oldest] > _FORGOTTEN:
            self._forget(oldest)

    def seconds(self, tokens: int) -> float:
        """What a step of so many tokens will cost; 0 if nothing is known.

        Beyond the known sizes as much more per token as between them: rather too little, which lets a size be tried.
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
        del self._latest[size], self._seconds[size]
        if self._observed.pop(size) >= _TRUSTED:
            self._sizes.remove(size)


def _size(tokens: int) -> float:
    """The size that steps of so many tokens are counted under."""
    if tokens <= _EXACT:
        return float(tokens)
    return _EXACT * 2 ** (round(4 * math.log2(tokens / _EXACT)) / 4)
