"""Filters the events of one answer, between the engine's text and the turn's log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from gateway.protocol.output_format import OutputFormat
from gateway.protocol.stream import ArgumentsDelta, CallBegun, CallEnded, TextDelta, TurnEvent
from gateway.safety.stream import StreamFilter

Open = Callable[[bool], StreamFilter]
"""Makes the filter of one text of the answer; the argument is true if the text is JSON."""


class AnswerFilter:
    """Filters events of an answer. Each message and each call's arguments are a text of their own."""

    def __init__(self, open: Open, format: OutputFormat | None = None) -> None:
        """Args: format: what the client wants messages to be."""
        self._open = open
        self._format = format
        self._filter: StreamFilter | None = None
        self._in_call = False
        self._tokens: tuple[int, ...] = ()
        """Tokens of text that is held back."""
        self._given: list[str] = []
        """Arguments of the current call that were given out."""
        self._fed = 0
        self.replaced = False
        """Whether a rule has replaced something; set by whoever makes the filters."""
        self.broken = False
        """Whether arguments are no JSON object any more because something was replaced."""

    @property
    def blocked(self) -> bool:
        """Whether a rule has ended the answer."""
        return self._filter is not None and self._filter.blocked

    @property
    def held(self) -> int:
        """Number of characters that are held back."""
        return self._filter.held if self._filter else 0

    @property
    def position(self) -> int:
        """Number of characters of the answer before those held back."""
        return self._fed - self.held

    def fits(self, text: str) -> bool:
        """Whether the whole answer is still in the wanted format after replacements."""
        return not (self.broken or (self.replaced and self._format is not None and not self._format.holds(text)))

    def events(self, events: Iterable[TurnEvent]) -> Iterator[TurnEvent]:
        """Filter an event; return the events that may be shown now."""
        for event in events:
            if self.blocked:
                return
            match event:
                case TextDelta():
                    yield from self._feed(event)
                case ArgumentsDelta():
                    yield from self._feed(event)
                case CallBegun():
                    yield from self._end()
                    yield event
                    self._in_call, self._given = True, []
                case CallEnded():
                    yield from self._end()
                    if not self.blocked:
                        yield self._ended(event)
                    self._in_call = False
                case _:
                    yield event

    def release(self) -> Iterator[TurnEvent]:
        """Return what has been held back for too long."""
        if self._filter is not None:
            yield from self._show(self._filter.release())

    def finish(self) -> Iterator[TurnEvent]:
        """Return the rest: the answer has ended."""
        if not self.blocked:
            yield from self._end()

    def _feed(self, event: TextDelta | ArgumentsDelta) -> Iterator[TurnEvent]:
        if self._filter is None:
            self._filter = self._open(self._in_call or (self._format is not None and self._format.is_json))
        self._tokens += event.token_ids
        self._fed += len(event.text)
        yield from self._show(self._filter.feed(event.text))

    def _end(self) -> Iterator[TurnEvent]:
        """End the current text."""
        if self._filter is not None:
            rest = self._filter.finish()
            yield from self._show(rest, last=True)
            if not self._filter.blocked:
                self._filter = None

    def _show(self, text: str, *, last: bool = False) -> Iterator[TurnEvent]:
        if not text and not (last and self._tokens and not self.blocked):
            return
        tokens, self._tokens = self._tokens, ()
        if self._in_call:
            self._given.append(text)
            yield ArgumentsDelta(text, tokens)
        else:
            yield TextDelta(text, tokens)

    def _ended(self, event: CallEnded) -> CallEnded:
        if not event.complete:
            return event
        try:
            complete = isinstance(msgspec.json.decode("".join(self._given)), dict)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            complete = False
        self.broken |= not complete
        return CallEnded(complete)
