"""Detects requests that are out of proportion to what a key has sent before: by size and by number. Pure.

Both are watched on a logarithmic scale by an exponentially weighted mean and mean absolute deviation. An outlier moves
them by a bounded step only (Huber's idea), so that an attack does not become the norm at once; two thresholds keep the
answer from flickering.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

Kind = Literal["size", "rate"]

MAX_KEYS = 10_000
"""Most keys that one process watches; those not seen for longest are forgotten first."""
PERIOD = 10.0
"""Length in seconds of the period in which requests are counted."""


class Sensitivity(Struct, frozen=True):
    """Thresholds from which something is out of proportion."""

    enter: float = 8.0
    """Deviations above the mean from which a quantity is out of proportion."""
    leave: float = 3.0
    """Deviations below which it is no longer out of proportion."""
    weight: float = 0.05
    """Weight of a new observation."""
    learning: int = 20
    """Observations before anything is judged."""
    step: float = 1.5
    """Most deviations that one observation may count for."""
    floor: float = 0.25
    """Least deviation, on the logarithmic scale: what is always the same may vary by a little."""


@dataclass(slots=True)
class Level:
    """Mean and deviation of one quantity of one key."""

    mean: float = 0.0
    deviation: float = 0.0
    observations: int = 0
    anomalous: bool = False

    def observe(self, amount: float, to: Sensitivity) -> bool:
        """Take one observation; return whether it is out of proportion to those before it."""
        value = math.log1p(amount)
        spread = max(self.deviation, to.floor)
        distance = value - self.mean
        if self.observations >= to.learning:
            self.anomalous = distance > (to.leave if self.anomalous else to.enter) * spread
            distance = max(-to.step * spread, min(distance, to.step * spread))
        self.observations += 1
        weight = max(to.weight, 1 / self.observations)
        self.mean += weight * distance
        self.deviation += weight * (abs(distance) - self.deviation)
        return self.anomalous


@dataclass(slots=True)
class _Key:
    size: Level = field(default_factory=Level)
    rate: Level = field(default_factory=Level)
    since: float = 0.0
    count: int = 0


class Anomalies:
    """The habits of this process's keys."""

    def __init__(self, sensitivity: Sensitivity | None = None) -> None:
        self._sensitivity = sensitivity or Sensitivity()
        self._keys: OrderedDict[str, _Key] = OrderedDict()

    def observe(self, key: str, characters: int, now: float) -> tuple[Kind, ...]:
        """Record a request; return what about it is out of proportion.

        Args:
            characters: its size.
            now: seconds on any clock that does not go back.
        """
        habits = self._keys.pop(key, None) or _Key(since=now)
        self._keys[key] = habits
        if len(self._keys) > MAX_KEYS:
            self._keys.popitem(last=False)
        kinds: list[Kind] = ["size"] if habits.size.observe(characters, self._sensitivity) else []
        if now - habits.since >= PERIOD:
            # Periods without a request are no observation: a key that comes once a day has a rate too.
            habits.rate.observe(habits.count, self._sensitivity)
            habits.since, habits.count = now, 0
        habits.count += 1
        if self._exceeds(habits):
            kinds.append("rate")
        return tuple(kinds)

    def _exceeds(self, key: _Key) -> bool:
        """Whether there are too many in this period already; not to wait for its end."""
        rate, to = key.rate, self._sensitivity
        if rate.observations < to.learning:
            return False
        limit = to.leave if rate.anomalous else to.enter
        return math.log1p(key.count) - rate.mean > limit * max(rate.deviation, to.floor)
