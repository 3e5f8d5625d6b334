"""Sinks take an engine's answer: into its turn, or through the filter of safety rules first."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from gateway.errors import AnswerRedacted
from gateway.protocol.stream import TurnEvent
from gateway.safety.answer import AnswerFilter
from gateway.turns import Turn


class AnswerSink(ABC):
    """Takes one answer event by event, as an engine gives it."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The answer's text so far, as far as it may be shown."""

    @property
    def blocked(self) -> bool:
        """Whether a safety rule has ended the answer; nothing is taken from then on."""
        return False

    @abstractmethod
    def begin(self) -> None:
        """Called when an engine is about to answer."""

    @abstractmethod
    def take(self, events: Iterable[TurnEvent]) -> None:
        """Take the next events of the answer."""

    def finish(self) -> AnswerRedacted | None:
        """End the answer; returns an error if safety rules have changed it so that it is not what was asked for."""
        return None

    def close(self) -> None:
        """Release what the sink holds, once nothing more comes, whether the answer has ended or failed."""
        return


class TurnSink(AnswerSink):
    """Appends an answer's events to its turn."""

    def __init__(self, turn: Turn, append: Callable[[TurnEvent], None] | None = None) -> None:
        """Args: append: takes the events instead of the turn."""
        self._turn = turn
        self._append = append or turn.append
        self.announce: Callable[[], None] = lambda: None
        """Tells the turn where it runs; set for each engine that is asked."""

    @property
    def text(self) -> str:
        return self._turn.log.text

    def begin(self) -> None:
        self.announce()

    def take(self, events: Iterable[TurnEvent]) -> None:
        for event in events:
            self._append(event)


class FilteredSink(AnswerSink):
    """Passes an answer through a filter; releases what the filter holds back once that has waited for some seconds."""

    def __init__(self, sink: TurnSink, filter: AnswerFilter, seconds: float) -> None:
        self._sink = sink
        self._filter = filter
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._position = 0

    @property
    def text(self) -> str:
        return self._sink.text

    @property
    def blocked(self) -> bool:
        return self._filter.blocked

    def begin(self) -> None:
        self._sink.begin()

    def take(self, events: Iterable[TurnEvent]) -> None:
        self._sink.take(self._filter.events(events))
        if self._filter.held and self._timer is None:
            self._wait()

    def finish(self) -> AnswerRedacted | None:
        self.close()
        self._sink.take(self._filter.finish())
        if not self._filter.fits(self.text):
            return AnswerRedacted(
                "the answer held what this server takes out, and is not in the wanted format without it"
            )
        return None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._position = self._filter.position
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._filter.position == self._position:
            self._sink.take(self._filter.release())
        if self._filter.held:
            self._wait()
