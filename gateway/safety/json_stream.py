"""Filters JSON that grows: what stands in strings as what it says, not as it is spelled, so that it stays JSON.

Each string is a text of its own: its escapes are read, the text is filtered, and what comes out is escaped again. What
stands between strings is filtered too: a number that is replaced becomes a string, and a model that breaks the format
gets nothing past the rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from gateway.safety.stream import StreamFilter

_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[^u])")
_HIGH = re.compile("[\ud800-\udbff]")
_LOW = re.compile("[\udc00-\udfff]")
_LONGEST_ESCAPE = 6

Open = Callable[[bool], StreamFilter]
"""Makes the filter of one text; the argument is true for the content of a string, false for what stands outside."""


class JsonFilter:
    """A `StreamFilter` for one JSON document."""

    def __init__(self, open: Open) -> None:
        self._open = open
        self._in_string = False
        self._filter = open(False)
        self._unread = ""
        """The beginning of an escape sequence, or half of a surrogate pair."""
        self._high = ""

    @property
    def held(self) -> int:
        return self._filter.held + len(self._unread) + len(self._high)

    @property
    def blocked(self) -> bool:
        return self._filter.blocked

    def feed(self, text: str) -> str:
        out: list[str] = []
        text, self._unread = self._unread + text, ""
        at = 0
        while at < len(text) and not self._filter.blocked:
            if not self._in_string:
                quote = text.find('"', at)
                end = len(text) if quote < 0 else quote
                out.append(self._filter.feed(text[at:end]))
                at = end
                if quote >= 0:
                    self._switch(out)
                    at += 1
                continue
            if plain := _PLAIN.match(text, at):
                out.append(self._say(plain[0]))
                at = plain.end()
            elif text[at] == '"':
                self._switch(out)
                at += 1
            elif escape := _ESCAPE.match(text, at):
                out.append(self._escaped(escape[0]))
                at = escape.end()
            elif len(text) - at < _LONGEST_ESCAPE:
                self._unread = text[at:]
                break
            else:  # no escape that JSON knows
                out.append(self._say(text[at]))
                at += 1
        return "".join(out)

    def release(self) -> str:
        return self._spelled(self._filter.release())

    def finish(self) -> str:
        """The document has ended, whole or not."""
        unread, self._unread = self._unread, ""
        out = self._say(unread) if unread else ""
        return out + self._spelled(self._lone() + self._filter.finish())

    def _switch(self, out: list[str]) -> None:
        """A quotation mark: the text before it is over."""
        out.append(self._spelled(self._lone() + self._filter.finish()))
        if self._filter.blocked:
            return
        out.append('"')
        self._in_string = not self._in_string
        self._filter = self._open(self._in_string)

    def _escaped(self, sequence: str) -> str:
        try:
            character: str = json.loads(f'"{sequence}"')
        except ValueError:  # no escape that JSON knows
            return self._say(sequence)
        if _HIGH.match(character):
            out = self._spelled(self._lone())
            self._high = character
            return out
        if self._high and _LOW.match(character):
            pair, self._high = self._high + character, ""
            character = pair.encode("utf-16", "surrogatepass").decode("utf-16")
        return self._say(character)

    def _say(self, text: str) -> str:
        return self._spelled(self._lone() + self._filter.feed(text))

    def _lone(self) -> str:
        """Half of a pair whose other half did not come."""
        high, self._high = self._high, ""
        return self._filter.feed(high) if high else ""

    def _spelled(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=_HIGH.search(text) is not None)[1:-1] if self._in_string else text
