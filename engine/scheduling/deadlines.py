"""Watches by when requests must have started and ended. Pure; O(log n) per request."""

from __future__ import annotations

import heapq
from itertools import count

from engine.request import Request, State


class Deadlines:
    """The time limits of all live requests."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, bool, Request]] = []
        """Heap of (when, number, whether the first step meets it, request); met limits stay in it until due."""
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request, live: int) -> None:
        """Watch the limits of a new request, if it has any; `live` is the number of requests that may be in here."""
        if request.queue_timeout is not None:
            self._push(request.arrival + request.queue_timeout, True, request)
        if request.timeout is not None:
            self._push(request.arrival + request.timeout, False, request)
        if len(self._heap) > 64 + 4 * live:  # limits that were met must not pile up
            self._heap = [entry for entry in self._heap if not _met(entry[2], entry[3])]
            heapq.heapify(self._heap)

    def due(self, now: float) -> list[Request]:
        """Return live requests that have missed a limit; each is named once."""
        missed: dict[str, Request] = {}
        while self._heap and self._heap[0][0] <= now:
            _, _, starts, request = heapq.heappop(self._heap)
            if not _met(starts, request):
                missed[request.id] = request
        return list(missed.values())

    def next(self) -> float | None:
        """Return when the next live request misses a limit."""
        while self._heap and _met(self._heap[0][2], self._heap[0][3]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _push(self, when: float, starts: bool, request: Request) -> None:
        heapq.heappush(self._heap, (when, next(self._numbers), starts, request))


def _met(starts: bool, request: Request) -> bool:
    return request.state is State.FINISHED or (starts and request.first_scheduled is not None)
