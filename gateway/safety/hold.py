"""The clock of an answer's filter: what has waited for too long is given out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from gateway.protocol.stream import TurnEvent
from gateway.safety.answer import AnswerFilter


class Hold:
    """Releases what a filter holds back, once the same text has waited for some seconds. Close it at the end."""

    def __init__(self, filter: AnswerFilter, seconds: float, append: Callable[[TurnEvent], None]) -> None:
        self._filter = filter
        self._seconds = seconds
        self._append = append
        self._timer: asyncio.TimerHandle | None = None
        self._position = 0

    def pass_on(self, events: Iterable[TurnEvent]) -> None:
        """More of the answer has come."""
        for event in self._filter.events(events):
            self._append(event)
        if self._filter.held and self._timer is None:
            self._wait()

    @property
    def blocked(self) -> bool:
        """A rule has ended the answer."""
        return self._filter.blocked

    def end(self) -> None:
        """The last of the answer has come."""
        self.close()
        for event in self._filter.finish():
            self._append(event)

    def close(self) -> None:
        """Release nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._position = self._filter.position
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._filter.position == self._position:
            for event in self._filter.release():
                self._append(event)
        if self._filter.held:
            self._wait()
