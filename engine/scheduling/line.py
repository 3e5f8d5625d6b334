"""The policies `fcfs` and `priority`: one line for all requests. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence

from engine.request import Request
from engine.scheduling.policy import LEVELS, PromptShare, Shortage, Victim, by_rank


class WaitingLine:
    """One line by arrival; a level of service weighs as much as `aging` seconds of waiting (0: it weighs nothing).

    A request ahead may take KV blocks from one behind; a waiting request takes nothing from a running one.
    """

    def __init__(self, aging: float) -> None:
        self.work = 0
        self._aging = aging
        self._line: list[Request] = []
        self._next = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._line)

    def ahead(self, request: Request) -> int:
        place = bisect_left(self._line, self._rank(request), key=by_rank)
        # The place is mostly near the end: the requests behind it are quicker to sum up.
        return self.work - sum(other.work for other in self._line[place:])

    def join(self, request: Request) -> None:
        self._arrivals += 1
        request.rank = self._rank(request)
        self.rejoin(request)

    def rejoin(self, request: Request) -> None:
        insort(self._line, request, key=by_rank)
        self.work += request.work

    def leave(self, request: Request) -> None:
        del self._line[bisect_left(self._line, request.rank, key=by_rank)]
        self.work -= request.work

    def withdraw(self, request: Request) -> None:
        self._next -= bisect_left(self._line, request.rank, key=by_rank) < self._next
        self.leave(request)

    def restore(self, request: Request) -> None:
        self.rejoin(request)

    def open(self, now: float) -> None:
        self._next = 0

    def first(self) -> Request | None:
        return self._line[self._next] if self._next < len(self._line) else None

    def pass_over(self, request: Request) -> None:
        self._next += 1

    def admit(self, request: Request, cached: int) -> None:
        self.leave(request)

    def generated(self, request: Request, tokens: int) -> None:
        pass

    def finish(self, request: Request) -> None:
        pass

    def may_preempt(self, request: Request, victim: Request) -> bool:
        return request.rank < victim.rank

    def within_share(self, request: Request) -> bool:
        return False

    def claim(
        self, request: Request, shortage: Shortage, running: Sequence[Request], victims: Callable[[], Sequence[Victim]]
    ) -> Sequence[Request]:
        return ()

    def share(self, request: Request) -> PromptShare:
        return PromptShare(None)

    def check_integrity(self, running: Sequence[Request]) -> None:
        if self.work != sum(request.work for request in self._line) or self._line != sorted(self._line, key=by_rank):
            raise RuntimeError("the line of waiting requests is counted or sorted wrongly")

    def _rank(self, request: Request) -> tuple[float, int]:
        return request.arrival + LEVELS[request.service] * self._aging, self._arrivals
