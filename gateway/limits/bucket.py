"""The token bucket's arithmetic in Python: the stand-in for one process while Redis is down. Pure.

The same arithmetic as `bucket.lua`, without leases: a process that dies takes its bucket along.
"""

from __future__ import annotations

import math

from msgspec import Struct

UNITS_PER_TOKEN = 60_000
"""Units of 1/60000 token: the refill per millisecond is the tokens per minute, an integer."""


class Answer(Struct, frozen=True):
    """State of a bucket after an operation."""

    granted: bool
    remaining: int
    """Tokens; below 0 if more was used than reserved."""
    full: float
    """Seconds until the bucket is full."""
    wait: float = 0.0
    """Seconds until what was asked for will be there, if it was not granted."""


class LocalBucket:
    """One tenant's bucket in this process."""

    def __init__(self, tokens_per_minute: int, burst: int, *, now: float) -> None:
        self._rate = tokens_per_minute
        self._capacity = burst * UNITS_PER_TOKEN
        self._level = self._capacity
        self._at = self._milliseconds(now)
        self._held: dict[str, int] = {}

    def reserve(self, turn: str, tokens: int, now: float) -> Answer:
        """Take tokens for a turn, all or none; a turn that holds some already is granted again."""
        self._refill(now)
        if turn in self._held:
            return self._answer()
        missing = tokens * UNITS_PER_TOKEN - self._level
        if missing > 0:
            return self._answer(granted=False, wait=math.ceil(missing / self._rate) / 1000)
        self._level -= tokens * UNITS_PER_TOKEN
        self._held[turn] = tokens
        return self._answer()

    def settle(self, turn: str, used: int, now: float) -> Answer:
        """Give back what a turn held and did not use, or charge what it used beyond that."""
        self._refill(now)
        if turn in self._held:
            unused = self._held.pop(turn) - used
            self._level = min(self._capacity, self._level + unused * UNITS_PER_TOKEN)
        return self._answer()

    def read(self, now: float) -> Answer:
        self._refill(now)
        return self._answer()

    def _refill(self, now: float) -> None:
        milliseconds = self._milliseconds(now)
        self._level = min(self._capacity, self._level + max(0, milliseconds - self._at) * self._rate)
        self._at = max(self._at, milliseconds)

    def _answer(self, *, granted: bool = True, wait: float = 0.0) -> Answer:
        full = math.ceil((self._capacity - self._level) / self._rate) / 1000
        return Answer(granted, self._level // UNITS_PER_TOKEN, full, wait)

    @staticmethod
    def _milliseconds(now: float) -> int:
        return math.floor(now * 1000)
