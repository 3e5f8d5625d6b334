"""Continues an answer of which a part was shown before: drops what repeats that part, and notices if it differs. Pure.

Every run of a request whose answer may be shared gives the same answer; that is why a turn that has shown a part of
another turn's answer may continue with one of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.protocol.stream import TextDelta, TurnEvent


class Repetition:
    """Passes on the events of an answer that go beyond the part shown before."""

    def __init__(self, shown: str, append: Callable[[TurnEvent], None]) -> None:
        self._left = shown
        self._append = append
        self.diverged = False
        """Whether the answer differs from the part shown; nothing is passed on any more."""

    @property
    def whole(self) -> bool:
        """Whether everything that was shown has come again."""
        return not self.diverged and not self._left

    def append(self, event: TurnEvent) -> None:
        """Take the next event of the answer, which has text only."""
        if self.diverged:
            return
        if not self._left or not isinstance(event, TextDelta):
            self._append(event)
            return
        known = min(len(event.text), len(self._left))
        if event.text[:known] != self._left[:known]:
            self.diverged = True
            return
        self._left = self._left[known:]
        if known < len(event.text):
            self._append(TextDelta(event.text[known:], event.token_ids))
