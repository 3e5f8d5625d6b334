"""Goes on with an answer of which a part was shown before: drops what repeats it, and notices if it does not. Pure.

A request that may share an answer gets the same one from every run; that is why a turn that has shown a part of another
turn's answer may go on with one of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.protocol.stream import TextDelta, TurnEvent


class Repetition:
    """Events of an answer in, those that are new out."""

    def __init__(self, shown: str, append: Callable[[TurnEvent], None]) -> None:
        self._left = shown
        self._append = append
        self.diverged = False
        """The answer is another one; nothing of it is let through any more."""

    @property
    def whole(self) -> bool:
        """Whether everything that was shown has come again."""
        return not self.diverged and not self._left

    def append(self, event: TurnEvent) -> None:
        """The next event of the answer, which has text only."""
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
