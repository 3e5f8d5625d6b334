"""Bounds that hold at certain times of the week."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, time, timedelta
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from msgspec import Struct
from msgspec.structs import replace

from scale.signals import PoolBounds

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)


class BoundsWindow(Struct, frozen=True, kw_only=True):
    """Other bounds at some time of some days."""

    start: str
    """Time of the day as `HH:MM`; `end` likewise."""
    end: str
    """Excluded. At or before `start`: on the next day."""
    days: tuple[Day, ...] = DAYS
    """Days on which it begins."""
    timezone: str = "UTC"
    """Name of the time zone in the IANA's database."""
    min_replicas: int | None = None
    """None: as always; so is `max_replicas`."""
    max_replicas: int | None = None

    def holds(self, at: float) -> bool:
        """Whether it holds at a time in seconds since 1970."""
        when = datetime.fromtimestamp(at, ZoneInfo(self.timezone))
        start, end, now = time.fromisoformat(self.start), time.fromisoformat(self.end), when.time()
        today, yesterday = DAYS[when.weekday()], DAYS[(when - timedelta(days=1)).weekday()]
        if start < end:
            return today in self.days and start <= now < end
        return (today in self.days and start <= now) or (yesterday in self.days and now < end)


def bounds_at(bounds: PoolBounds, windows: Iterable[BoundsWindow], at: float) -> PoolBounds:
    """Return the bounds at a time in seconds since 1970. Of two windows the later one holds.

    A `min_replicas` above `max_replicas` raises the latter.
    """
    low, high = bounds.min_replicas, bounds.max_replicas
    for window in windows:
        if window.holds(at):
            low = low if window.min_replicas is None else window.min_replicas
            high = high if window.max_replicas is None else window.max_replicas
    return replace(bounds, min_replicas=low, max_replicas=max(low, high))
