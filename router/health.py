"""How one engine does: a circuit breaker for failures in a row, and the share of late requests that failed.

After several failures in a row an engine is left alone, then tried with one request. One that fails now and then never
trips that; its error rate makes the router prefer others (`router/replica.py`), and fades while nothing is sent there.

Pure: time comes in as an argument (seconds on any monotonic clock).
"""

from __future__ import annotations

import enum


class Circuit(enum.Enum):
    """States of a breaker: CLOSED -> OPEN -> HALF_OPEN -> CLOSED or OPEN; any other transition raises."""

    CLOSED = "closed"
    """Requests pass."""
    OPEN = "open"
    """No request passes until the pause is over."""
    HALF_OPEN = "half_open"
    """One request is on trial."""


_ALLOWED = {
    (Circuit.CLOSED, Circuit.OPEN),
    (Circuit.OPEN, Circuit.HALF_OPEN),
    (Circuit.HALF_OPEN, Circuit.CLOSED),
    (Circuit.HALF_OPEN, Circuit.OPEN),
}


class Breaker:
    """Counts consecutive failures of one engine and says whether it may be tried."""

    def __init__(self, *, failures: int, pause: float) -> None:
        """Args: failures: in a row, until the circuit opens; pause: seconds until it is tried again."""
        self._limit = failures
        self._pause = pause
        self._failures = 0
        self._until = 0.0
        self.circuit = Circuit.CLOSED

    def configure(self, *, failures: int, pause: float) -> None:
        """Use other limits from now on."""
        self._limit = failures
        self._pause = pause

    def allows(self, now: float) -> bool:
        """Return whether a request may be sent. Asking changes nothing; `attempt` says that one is sent."""
        return self.circuit is Circuit.CLOSED or now >= self._until

    def attempt(self, now: float) -> None:
        """Record that a request is sent. After the pause it becomes the trial; others wait for its outcome or another
        pause."""
        if self.circuit is not Circuit.CLOSED:
            if self.circuit is Circuit.OPEN:
                self._move_to(Circuit.HALF_OPEN)
            self._until = now + self._pause

    def succeeded(self) -> None:
        """Record an answer. A success that was sent before the circuit opened does not close it."""
        if self.circuit is Circuit.HALF_OPEN:
            self._move_to(Circuit.CLOSED)
        if self.circuit is Circuit.CLOSED:
            self._failures = 0

    def failed(self, now: float) -> None:
        """Record that the engine did not answer, or broke off."""
        self._failures += 1
        if self.circuit is Circuit.HALF_OPEN or (self.circuit is Circuit.CLOSED and self._failures >= self._limit):
            self._move_to(Circuit.OPEN)
            self._until = now + self._pause

    def _move_to(self, circuit: Circuit) -> None:
        if (self.circuit, circuit) not in _ALLOWED:
            raise RuntimeError(f"illegal transition {self.circuit.value} -> {circuit.value}")
        self.circuit = circuit


class ErrorRate:
    """The share of failed requests, late ones weighted most: one that is `half_life` seconds old counts half.

    It begins, and after a long silence ends, at 0: a few requests that went well are assumed.
    """

    ASSUMED = 4.0
    """Successful requests that are assumed."""

    def __init__(self, *, half_life: float = 30.0) -> None:
        self._half_life = half_life
        self._at = 0.0
        self._requests = self._failures = 0.0

    def observe(self, failed: bool, now: float) -> None:
        """Record that a request has ended."""
        self._fade(now)
        self._requests += 1
        self._failures += failed

    def rate(self, now: float) -> float:
        """Return the error rate, in [0, 1]."""
        self._fade(now)
        return self._failures / (self._requests + self.ASSUMED)

    def _fade(self, now: float) -> None:
        if self._requests and now > self._at:
            part = 0.5 ** ((now - self._at) / self._half_life)
            self._requests *= part
            self._failures *= part
        self._at = max(now, self._at)
