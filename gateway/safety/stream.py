"""Filters text that grows: what comes out is what would come out if it were filtered whole, however it is cut.

Text is held back only from where a recogniser says that more text could matter. That is at most the longest `reach` of
the rules: some hundred characters in theory, the last word in practice. `release` bounds the wait in time as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from gateway.recognisers.recogniser import CONTEXT, Match, Recogniser, Rest

MAX_FOUND = 4096
"""Most characters of a finding that are reported."""


class FilterRule(Struct, frozen=True):
    """A recogniser, and what is done where it finds something."""

    name: str
    recogniser: Recogniser
    replacement: str = ""
    """Text that replaces a finding, unless `blocks`."""
    blocks: bool = False
    """Whether a finding ends the text: nothing comes after what was before it."""


Found = Callable[[FilterRule, str], None]
"""Callback for every finding."""


class StreamFilter(Protocol):
    """Filters text as it streams, in order."""

    def feed(self, text: str) -> str:
        """Take more text; return what can be given out now."""
        ...

    def release(self) -> str:
        """Give out what is held back, which has waited too long. What has not been shown of a finding that begins in
        it will still be replaced.
        """
        ...

    def finish(self) -> str:
        """Return the rest: no more text comes."""
        ...

    @property
    def held(self) -> int:
        """Number of characters that are held back."""
        ...

    @property
    def blocked(self) -> bool:
        """Whether a rule has ended the text; nothing comes out any more."""
        ...


class TextFilter:
    """Applies rules to a text; without rules it passes unchanged.

    Of findings that overlap, the first counts; of those that begin together, the one whose rule comes first.
    """

    def __init__(self, rules: Sequence[FilterRule], found: Found) -> None:
        self._rules = rules
        self._report = found
        self._reach = max((rule.recogniser.reach for rule in rules), default=0)
        self._text = ""
        """Text from `_at` on that is not decided yet, after some context."""
        self._at = 0
        self._shown = 0
        """Position before which text was given out, decided or not."""
        self._found: list[str] = []
        self._room = 0
        """Characters that may be added to it."""
        self._rule: FilterRule | None = None
        """Rule whose finding goes on in `_rest`."""
        self._rest: Rest | None = None
        self.blocked = False

    @property
    def held(self) -> int:
        return len(self._text) - max(self._at, self._shown)

    def feed(self, text: str) -> str:
        keep = max(self._at - CONTEXT, 0)
        self._text = self._text[keep:] + text
        self._at -= keep
        self._shown -= keep
        return self._scan(ended=False)

    def release(self) -> str:
        out = self._scan(ended=False, decide=True)
        if self._rest is None and not self.blocked:
            out += self._text[max(self._at, self._shown) :]
            self._shown = len(self._text)
        return out

    def finish(self) -> str:
        out = self._scan(ended=True)
        if not self.blocked:
            self._close()
        return out

    def _scan(self, *, ended: bool, decide: bool = False) -> str:
        """Decide what can be decided: all of it if it has `ended`; all findings so far with `decide`."""
        if self.blocked:
            return ""
        out: list[str] = []
        text = self._text
        nearest: list[Match | None] = [rule.recogniser.find(text, self._at) for rule in self._rules]
        while self._go_on(ended):
            match, rule = self._next(nearest)
            end = len(text) if match is None else match.start
            if not (ended or decide) and (match is None or end + self._reach > len(text)):
                hold = min((rule.recogniser.pending(text, self._at) for rule in self._rules), default=end)
                if match is None or match.start >= hold:
                    self._show(out, hold)
                    break
            if match is None or rule is None:
                if ended:
                    self._show(out, end)
                break
            self._show(out, end)
            if rule.blocks:
                self.blocked = True
                self._report(rule, text[match.start : match.end][:MAX_FOUND])
                self._text, self._at, self._shown = "", 0, 0
                break
            out.append(rule.replacement)
            self._found, self._rule, self._rest = [text[match.start : match.end]], rule, match.rest
            self._at, self._room = match.end, MAX_FOUND
            if match.rest is None:
                self._close()
        return "".join(out)

    def _next(self, nearest: list[Match | None]) -> tuple[Match | None, FilterRule | None]:
        """The next finding; looks again only for what was found before the current position."""
        first: tuple[Match | None, FilterRule | None] = (None, None)
        for index, rule in enumerate(self._rules):
            match = nearest[index]
            if match is not None and match.start < self._at:
                match = nearest[index] = rule.recogniser.find(self._text, self._at)
            if match is not None and (first[0] is None or match.start < first[0].start):
                first = match, rule
        return first

    def _go_on(self, ended: bool) -> bool:
        """Skip what still belongs to a finding; return whether the text after it can be scanned."""
        if self._rest is None:
            return True
        end, closed = self._rest.consume(self._text, self._at, ended)
        if self._room > 0:
            self._found.append(self._text[self._at : end])
            self._room -= end - self._at
        self._at = end
        if closed:
            self._close()
        return closed

    def _close(self) -> None:
        if self._rule is not None:
            self._report(self._rule, "".join(self._found)[:MAX_FOUND])
        self._found, self._rule, self._rest = [], None, None

    def _show(self, out: list[str], end: int) -> None:
        """Give out the text up to a position, without what was given out already."""
        out.append(self._text[max(self._at, self._shown) : end])
        self._at = max(self._at, end)


def filter_text(text: str, rules: Sequence[FilterRule], found: Found) -> tuple[str, bool]:
    """Filter a whole text; return it, and whether a rule has ended it."""
    whole = TextFilter(rules, found)
    out = whole.feed(text) + whole.finish()
    return out, whole.blocked
