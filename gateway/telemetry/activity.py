"""What tenants did in the last minute, for `roundhouse top`: sums over a sliding window, in this process. And how many
turns of each adapter run.

Pure: time comes in as an argument (seconds on any monotonic clock). Tenants that were idle for a window are forgotten,
and beyond `MAX_TENANTS` new ones share one entry, so that the memory it takes is bounded.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct, structs

WINDOW = 60.0
"""Seconds that are looked back on."""
INTERVALS = 12
MAX_TENANTS = 5_000
OTHERS = "(others)"
"""Who stands for the tenants beyond `MAX_TENANTS`; no tenant can have this name."""


class Sums(Struct):
    """What was counted; the names of the columns of `roundhouse top`."""

    turns: int = 0
    """Ended, refused ones included."""
    refused: int = 0
    failed: int = 0
    """Those that no engine could answer included."""
    input_tokens: int = 0
    cached_tokens: int = 0
    """Of `input_tokens`, those found in an engine's prefix cache."""
    output_tokens: int = 0
    hits: int = 0
    """Answers from the response cache."""
    misses: int = 0
    """Look-ups that found none."""

    def add(self, other: Sums) -> None:
        for name in _FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_FIELDS = tuple(field.name for field in structs.fields(Sums))


class TenantActivity(Struct):
    """One tenant now, and over the last minute."""

    name: str
    running: int
    minute: Sums


class _Tenant:
    __slots__ = ("began", "intervals", "last", "running")

    def __init__(self, interval: int) -> None:
        self.running = 0
        self.began = self.last = interval
        self.intervals: list[Sums | None] = [None] * INTERVALS

    def current(self, interval: int) -> Sums:
        """The sums of this interval; those of intervals that have left the window are dropped."""
        for passed in range(max(self.last, interval - INTERVALS) + 1, interval + 1):
            self.intervals[passed % INTERVALS] = None
        self.last = max(self.last, interval)
        sums = self.intervals[interval % INTERVALS]
        if sums is None:
            sums = self.intervals[interval % INTERVALS] = Sums()
        return sums

    def minute(self, interval: int) -> Sums:
        total = Sums()
        for back in range(INTERVALS):
            at = interval - back
            sums = self.intervals[at % INTERVALS] if self.last - INTERVALS < at <= self.last else None
            if sums is not None:
                total.add(sums)
        return total


class Activity:
    """Counts per tenant, and per adapter."""

    def __init__(self) -> None:
        self.adapters = Counter[str]()
        """Running turns by the name of their adapter; those that have some."""
        self._tenants: dict[str, _Tenant] = {}

    @contextlib.contextmanager
    def using(self, adapter: str | None) -> Iterator[None]:
        """Count a turn as its adapter's while the body runs; None: it has none."""
        if adapter is None:
            yield
            return
        self.adapters[adapter] += 1
        try:
            yield
        finally:
            self.adapters[adapter] -= 1
            if not self.adapters[adapter]:
                del self.adapters[adapter]

    def started(self, tenant: str, now: float) -> None:
        """A turn has begun."""
        self._tenant(tenant, now).running += 1

    def ended(self, tenant: str, outcome: str, now: float) -> None:
        """It has ended; `outcome` as in `roundhouse_turns_total`."""
        counted = self._tenant(tenant, now)
        counted.running -= 1
        sums = counted.current(_interval(now))
        sums.turns += 1
        sums.refused += outcome == "refused"
        sums.failed += outcome in ("failed", "unavailable")

    def answered(self, tenant: str, cache: str, usage: tuple[int, int, int], now: float) -> None:
        """It was answered. Args: cache: hit, miss or bypass; usage: input, cached input and output tokens."""
        sums = self._tenant(tenant, now).current(_interval(now))
        sums.hits += cache == "hit"
        sums.misses += cache == "miss"
        if cache != "hit":
            sums.input_tokens += usage[0]
            sums.cached_tokens += usage[1]
            sums.output_tokens += usage[2]

    def busiest(self, now: float, most: int) -> tuple[Sums, list[TenantActivity]]:
        """Sums over all tenants, and the tenants that used most tokens; idle ones are forgotten."""
        interval = _interval(now)
        total = Sums()
        tenants = []
        for name, counted in list(self._tenants.items()):
            if not counted.running and interval - counted.last >= INTERVALS:
                del self._tenants[name]
                continue
            minute = counted.minute(interval)
            total.add(minute)
            tenants.append(TenantActivity(name, counted.running, minute))
        tenants.sort(key=lambda each: (-_weight(each), each.name))
        return total, tenants[:most]

    def _tenant(self, name: str, now: float) -> _Tenant:
        found = self._tenants.get(name)
        if found is None:
            if len(self._tenants) >= MAX_TENANTS and name != OTHERS:
                return self._tenant(OTHERS, now)
            found = self._tenants[name] = _Tenant(_interval(now))
        return found


def _interval(now: float) -> int:
    return int(now * INTERVALS / WINDOW)


def _weight(tenant: TenantActivity) -> int:
    minute = tenant.minute
    return minute.input_tokens + minute.output_tokens + 100 * (tenant.running + minute.turns)
