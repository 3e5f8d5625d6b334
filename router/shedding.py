"""When to come back, for those whom a full pool refuses.

As turns end at a known pace, each one refused is told a moment of its own: the next slot that nobody else was told of.
All of them coming back at once would only be refused again.

Pure: time comes in as an argument (seconds on any monotonic clock).
"""

from __future__ import annotations

LONGEST = 60.0
"""Seconds that anybody is told to stay away."""
_SMOOTHING = 0.1
"""Weight of the newest turn in the moving average of their durations."""


class Turnover:
    """How soon a pool has room again."""

    def __init__(self) -> None:
        self._held = 1.0
        self._known = False
        self._promised = 0.0

    def ended(self, seconds: float) -> None:
        """A turn has ended that held its place so long."""
        self._held = self._held + _SMOOTHING * (seconds - self._held) if self._known else seconds
        self._known = True

    def retry_after(self, places: int, now: float) -> float:
        """Seconds until the next place is free, if all `places` are taken and their turns as long as late ones."""
        interval = self._held / places
        self._promised = min(max(self._promised, now) + interval, now + LONGEST)
        return self._promised - now
