"""The interface of a recogniser: it finds one kind of text, and says which end of an unfinished text may still become
one.

The second half is what makes streams right: text is given out as soon as no recogniser can want it any more, and not
a character earlier. Both halves look at a bounded stretch of text (`reach`), so that the wait is bounded too.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

CONTEXT = 2
"""Characters before a match that may decide whether it is one."""


class Rest(Protocol):
    """How a match goes on whose beginning is enough to be sure: it is swallowed, not held back."""

    def consume(self, text: str, at: int, ended: bool) -> tuple[int, bool]:
        """Go on at a position.

        Returns:
            The position up to which the text belongs to the match, and whether that is all of it. If not, what
            comes after the position is undecided.
        """
        ...


class Match(NamedTuple):
    """A match in a text."""

    start: int
    end: int
    rest: Rest | None = None
    """How the match goes on after `end`, if it does."""


class Recogniser(Protocol):
    """Finds one kind of text, in linear time."""

    @property
    def reach(self) -> int:
        """Characters from the start of a match that may decide whether it is one, and where its `end` is."""
        ...

    def find(self, text: str, start: int) -> Match | None:
        """The leftmost match that starts at `start` or later, as if nothing came after the text."""
        ...

    def pending(self, text: str, start: int) -> int:
        """The first position, from `start` on, where more text could begin, change or end a match.

        For every text that may follow, the matches that start before it are those that `find` gives now. It is never
        further than `reach` from the end; the text's length, if nothing is pending.
        """
        ...


class Run:
    """The rest of a match: a run of characters, with single separators that something has to follow.

    Args:
        characters: body of a character class.
        separator: one character that belongs to the run only between others, or nothing.
    """

    def __init__(self, characters: str, separator: str = "") -> None:
        tail = f"(?:{re.escape(separator)}[{characters}]+)*" if separator else ""
        self._pattern = re.compile(f"[{characters}]*{tail}")
        self._separator = separator

    def consume(self, text: str, at: int, ended: bool) -> tuple[int, bool]:
        found = self._pattern.match(text, at)
        assert found  # it may be empty
        end = found.end()
        waiting = end == len(text) or (end == len(text) - 1 and text[end] == self._separator)
        return end, ended or not waiting


def run_start(text: str, start: int, characters: str, reach: int) -> int:
    """Where the run of these characters at the end of the text begins, at most `reach` characters before the end."""
    first = max(start, len(text) - reach)
    return first + len(text[first:].rstrip(characters))
