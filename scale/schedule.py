"""Bounds that hold at certain times of the week."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, time, timedelta
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct
from msgspec.structs import replace

from scale.signals import PoolBounds

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)
ClockTime = Annotated[str, Meta(pattern=r"\A([01]\d|2[0-3]):[0-5]\d\Z")]


class BoundsWindow(Struct, frozen=True, kw_only=True):
    """Other bounds at some time of some days."""

    start: ClockTime
    end: ClockTime
    """Excluded. At or before `start`: on the next day."""
    days: tuple[Day, ...] = DAYS
    """Days on which it begins."""
    min_replicas: int | None = None
    """None: as always; so is `max_replicas`."""
    max_replicas: int | None = None


def bounds_at(bounds: PoolBounds, windows: Iterable[BoundsWindow], when: datetime) -> PoolBounds:
    """Return the bounds at a time, which is in the time zone that the windows mean. Of two windows the later one holds.

    A `min_replicas` above `max_replicas` raises the latter.
    """
    low, high = bounds.min_replicas, bounds.max_replicas
    for window in windows:
        if _within(window, when):
            low = low if window.min_replicas is None else window.min_replicas
            high = high if window.max_replicas is None else window.max_replicas
    return replace(bounds, min_replicas=low, max_replicas=max(low, high))


def _within(window: BoundsWindow, when: datetime) -> bool:
    start, end = time.fromisoformat(window.start), time.fromisoformat(window.end)
    now = when.time()
    today, yesterday = DAYS[when.weekday()], DAYS[(when - timedelta(days=1)).weekday()]
    if start < end:
        return today in window.days and start <= now < end
    return (today in window.days and start <= now) or (yesterday in window.days and now < end)
