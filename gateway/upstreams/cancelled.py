"""Whether a server ends an answer when its connection is closed, as far as it tells what it runs.

Some servers tell of each request that runs (a *mark* that came with it), others only how many do. Then what is more
than this gateway's own is the server's other clients, or answers that go on: those count that are more than there were
at best before the connection was closed, and stay so for longer than such a number lags.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from gateway.upstreams.pages import ServerPages

PATIENCE, LAG = 5.0, 30.0
"""Seconds after which an answer counts as going on: one that is seen itself, and one of a number."""
_MOST = 1000
"""Most closed connections that are remembered."""


@dataclass
class _Closed:
    """An answer that was still running when its connection was closed."""

    mark: int
    at: float
    surplus: int
    """Fewest requests that were not this gateway's own, in the time before."""
    lingers: bool = False


class CancelWatch:
    """The answers of one server whose connections were closed before their end."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.lingered = 0
        """Answers that went on, since the start."""
        self._closed: deque[_Closed] = deque(maxlen=_MOST)
        self._surpluses: deque[tuple[float, int]] = deque()
        """When which number of requests was not this gateway's own, for as long as such a number lags."""

    def closed(self, mark: int) -> None:
        """Record that a connection was closed."""
        surplus = min((surplus for _, surplus in self._surpluses), default=0)
        self._closed.append(_Closed(mark, self._clock(), surplus))

    async def look(self, server: ServerPages, metrics: Mapping[str, int], live: Sequence[int]) -> int:
        """See what the server runs; returns how many answers turn out to go on.

        Args:
            metrics: what its metrics count.
            live: marks of this gateway's own that are wanted.

        Raises:
            httpx2.HTTPError: it does not answer.
        """
        if server.tells_requests:
            running = await server.seeds() if self._closed else []
            if running is None:  # it was told not to
                self._closed.clear()
            return self.seen(running or [], live)
        if "running" in metrics:
            return self.counted(metrics["running"] + metrics.get("waiting", 0), len(live))
        self._closed.clear()
        return 0

    def seen(self, running: Collection[int], live: Collection[int]) -> int:
        """Take over the marks of the requests that run; returns how many answers turn out to go on.

        Args:
            live: marks of this gateway's own that are wanted.
        """
        now = self._clock()
        going = [each for each in self._closed if each.mark in running and each.mark not in live]
        self._closed = deque(going, _MOST)
        return self._lingering([each for each in going if now - each.at > PATIENCE])

    def counted(self, running: int, live: int) -> int:
        """Take over the number of requests that run; returns how many answers turn out to go on.

        Args:
            live: number of this gateway's own.
        """
        now, surplus = self._clock(), running - live
        while self._surpluses and now - self._surpluses[0][0] > LAG:
            self._surpluses.popleft()
        self._surpluses.append((now, surplus))
        going = [each for each in self._closed if each.surplus < surplus]
        late = [each for each in going if now - each.at > LAG]
        # So many can be among them; the others have ended.
        late = late[: max((surplus - each.surplus for each in late), default=0)]
        self._closed = deque([each for each in going if now - each.at <= LAG or each in late], _MOST)
        return self._lingering(late)

    def clear(self) -> None:
        """Forget all, because the server is gone."""
        self._closed.clear()
        self._surpluses.clear()

    def _lingering(self, going: Collection[_Closed]) -> int:
        new = [each for each in going if not each.lingers]
        for each in new:
            each.lingers = True
        self.lingered += len(new)
        return len(new)
