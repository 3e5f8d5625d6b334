"""What a scheduling policy decides: which waiting request is admitted next.

A policy holds the waiting requests; the scheduler asks it for one at a time and admits or passes over it. Pure: time
and state come in as arguments.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import Protocol

from engine.request import Request
from engine.wire import ServiceClass

by_rank = attrgetter("rank")
LEVELS: dict[ServiceClass, int] = {"premium": -1, "standard": 0, "batch": 1}


class Policy(Protocol):
    """The waiting requests and their order."""

    def __len__(self) -> int:
        """Waiting requests."""
        ...

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests."""
        ...

    def join(self, request: Request) -> None:
        """A new request waits."""
        ...

    def rejoin(self, request: Request) -> None:
        """A preempted request waits again, in its old place."""
        ...

    def leave(self, request: Request) -> None:
        """A waiting request has ended."""
        ...

    def open(self, now: float) -> None:
        """A step begins: nobody is passed over yet."""
        ...

    def first(self) -> Request | None:
        """Who is to be admitted next, of those not passed over in this step."""
        ...

    def pass_over(self, request: Request) -> None:
        """`first()` cannot be admitted in this step, and need not hold up those behind it."""
        ...

    def admit(self, request: Request) -> None:
        """`first()` runs from now on."""
        ...


class Line:
    """One line by arrival and service class, a level of service weighing as much as `aging` seconds of waiting."""

    def __init__(self, aging: float) -> None:
        self._aging = aging
        self._line: list[Request] = []
        self._next = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._line)

    def join(self, request: Request) -> None:
        self._arrivals += 1
        request.rank = (request.arrival + LEVELS[request.service] * self._aging, self._arrivals)
        self.rejoin(request)

    def rejoin(self, request: Request) -> None:
        insort(self._line, request, key=by_rank)

    def leave(self, request: Request) -> None:
        del self._line[bisect_left(self._line, request.rank, key=by_rank)]

    def open(self, now: float) -> None:
        self._next = 0

    def first(self) -> Request | None:
        return self._line[self._next] if self._next < len(self._line) else None

    def pass_over(self, request: Request) -> None:
        self._next += 1

    def admit(self, request: Request) -> None:
        del self._line[self._next]
