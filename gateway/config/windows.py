"""Bounds of a pool at certain times of the week."""

from __future__ import annotations

from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec import Meta

from gateway.records.section import Section
from scale.schedule import DAYS, BoundsWindow, Day

_ClockTime = Annotated[str, Meta(pattern=r"\A([01]\d|2[0-3]):[0-5]\d\Z")]


class PoolWindow(Section, frozen=True):
    """Other bounds of a pool with `max_replicas` at some time of some days, see
    [operating.md](operating.md#how-many-engines). Of windows that overlap, the later one in this list holds."""

    start: Annotated[_ClockTime, Meta(description="Time of the day at which it begins, `HH:MM`.")]
    end: Annotated[
        _ClockTime,
        Meta(description="Time at which it has ended; on the next day if that is not later than `start`."),
    ]
    days: Annotated[list[Day], Meta(min_length=1, description="Days on which it begins, of `mon` to `sun`.")] = (
        msgspec.field(default_factory=lambda: list(DAYS))
    )
    timezone: Annotated[str, Meta(description="Time zone of both times, such as `Europe/Berlin`.")] = "UTC"
    min_replicas: Annotated[
        Annotated[int, Meta(ge=0, le=1000)] | None,
        Meta(description="Fewest engines meanwhile; empty: the pool's own."),
    ] = None
    max_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(description="Most engines meanwhile; empty: the pool's own, or `min_replicas` if that is more."),
    ] = None

    @property
    def bounds(self) -> BoundsWindow:
        """The same for the policy.

        Raises:
            ValueError: it says nothing, or in a time zone that this machine does not know.
        """
        if self.min_replicas is None and self.max_replicas is None:
            raise ValueError("a window needs min_replicas or max_replicas")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"the time zone {self.timezone!r} is not known here; names are such as Europe/Berlin (Debian: tzdata)"
            ) from None
        return msgspec.convert(self, BoundsWindow, from_attributes=True)
