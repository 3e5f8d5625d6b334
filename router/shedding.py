"""Tells each client that a full pool refuses when to come back.

As turns end at a known pace, each one refused is told a moment of its own: the next slot that nobody else was told of.
All of them coming back at once would only be refused again.

Pure: time comes in as an argument (seconds on any monotonic clock).
"""

from __future__ import annotations

LONGEST = 60.0
"""Longest time, in seconds, that a client is told to stay away."""
_SMOOTHING = 0.1
"""Weight of the newest turn in the moving average of their durations."""


class Turnover:
    """The pace at which the turns of a pool end."""

    def __init__(self) -> None:
        self._held = 1.0
        self._known = False
        self._promised = 0.0

    def ended(self, seconds: float) -> None:
        """Record that a turn has ended, and how long it held its place."""
        self._held = self._held + _SMOOTHING * (seconds - self._held) if self._known else seconds
        self._known = True

    def retry_after(self, places: int, now: float) -> float:
        """Return the seconds until the next place is free, if all `places` are taken and their turns last as long as
        late ones."""
        interval = self._held / places
        self._promised = min(max(self._promised, now) + interval, now + LONGEST)
        return self._promised - now
