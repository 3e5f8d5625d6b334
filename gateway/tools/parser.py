"""Reads an answer that may hold function calls while it grows. Sans-I/O: text in, what became certain out.

Each format is a subclass whose `_parse` is a generator that reads as if all text were there, and yields where it has
to wait for more (the `websockets` library parses its handshake this way). Two rules hold for every format and however
the text is cut into pieces: the pieces do not change the result, and whatever is no call comes out as text, except
for white space beside a call.

Text that only looks like a call stays text: what breaks the format before its function is known, and calls of
functions that the client has not offered.
"""

from __future__ import annotations

import abc
import json
import re
from collections.abc import Generator, Iterable
from typing import NoReturn, TypeAlias, TypeVar

from engine.client.conversation import AnswerPart, ArgumentsPart, CallEndPart, CallPart, TextPart

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
"""A generator that parses a part of an answer; it yields when it needs more text."""

MAX_CALLS = 128
"""Most calls in one answer. What looks like a call after that is text."""


class CallParser(abc.ABC):
    """Parses one answer. Make one per answer: `push` its text, then `finish`."""

    def __init__(self, names: Iterable[str], *, bare: bool = True) -> None:
        """Args:
        names: functions that may be called.
        bare: whether an answer may begin with a call that no marker tells from text or from JSON.
        """
        self._names = frozenset(names)
        self._bare = bare
        self._buffer = ""
        self._at = 0
        """Position before which text has been read."""
        self._mark: int | None = None
        """Start of what may be a call, to be given back as text if it is none."""
        self._ended = False
        self._calls = 0
        self._begun = False
        """Whether a call is being read whose function is known."""
        self._arguments: list[str] = []
        self._after_call = False
        """Whether nothing but white space has come since the last call."""
        self._out: list[AnswerPart] = []
        self._reading = self._parse()
        next(self._reading, None)

    def push(self, text: str) -> list[AnswerPart]:
        """Read more of the answer; return what has become certain."""
        keep = self._at if self._mark is None else self._mark
        self._buffer = self._buffer[keep:] + text
        self._at -= keep
        self._mark = None if self._mark is None else 0
        next(self._reading, None)
        return self._taken()

    def finish(self) -> list[AnswerPart]:
        """Read the rest of the answer; a call that has not ended is incomplete."""
        self._ended = True
        next(self._reading, None)
        return self._taken()

    @abc.abstractmethod
    def _parse(self) -> Reading[None]:
        """Read the whole answer."""

    # What comes out.

    def _say(self, text: str) -> None:
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = False
            self._out.append(TextPart(text))

    def _call(self, name: str) -> bool:
        """Begin a call; False if there may be no such call."""
        if name not in self._names or self._calls >= MAX_CALLS:
            return False
        self._out.append(CallPart(name))
        self._calls += 1
        self._mark = None
        self._begun = self._after_call = True
        self._arguments = []
        return True

    def _argue(self, text: str) -> None:
        if text:
            self._arguments.append(text)
            self._out.append(ArgumentsPart(text))

    def _end_call(self) -> None:
        if self._begun:
            self._begun = False
            self._out.append(CallEndPart(_is_object("".join(self._arguments))))

    def _no_call(self) -> None:
        """Give out what was read since the mark as text after all; end a call that has begun."""
        self._end_call()
        if self._mark is not None:
            text, self._mark = self._buffer[self._mark : self._at], None
            self._say(text)

    def _taken(self) -> list[AnswerPart]:
        out, self._out = self._out, []
        return out

    # How to read.

    def _peek(self) -> Reading[str]:
        """Return the next character without reading it; empty at the end."""
        while self._at == len(self._buffer) and not self._ended:
            yield
        return self._buffer[self._at : self._at + 1]

    def _space(self) -> Reading[None]:
        """Read white space."""
        while (yield from self._peek()).isspace():
            self._at += 1

    def _accept(self, text: str) -> Reading[bool]:
        """Read exactly this text; return False and read nothing if something else stands there."""
        while len(self._buffer) - self._at < len(text) and not self._ended:
            if not text.startswith(self._buffer[self._at :]):
                return False
            yield
        if not self._buffer.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _word(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read characters of a class."""
        word = ""
        while pattern.fullmatch((yield from self._peek())):
            word += self._buffer[self._at]
            self._at += 1
        return word

    def _prose(self, marker: str) -> Reading[bool]:
        """Read text up to a marker, and mark it; False at the end. White space before a marker belongs to it."""
        while (found := self._buffer.find(marker, self._at)) < 0:
            if self._ended:
                self._say(self._buffer[self._at :])
                self._at = len(self._buffer)
                return False
            certain = len(self._buffer) - _overlap(self._buffer, marker)
            self._read_text(max(certain, self._at))
            yield
        self._read_text(found)
        self._mark = self._at
        self._at = found + len(marker)
        return True

    def _read_text(self, end: int) -> None:
        """Read text up to a position, but no white space right before it."""
        text = self._buffer[self._at : end].rstrip()
        self._say(text)
        self._at += len(text)

    def _value(self, *, stream: bool = False) -> Reading[str | None]:
        """Read one JSON value, without checking more than where it ends. None if it is cut off.

        Args:
            stream: give it out as arguments while it is read; then the result is empty.
        """
        scanner, read = JsonValue(), ""
        while True:
            start, self._at = self._at, scanner.feed(self._buffer, self._at)
            piece = self._buffer[start : self._at]
            if stream:
                self._argue(piece)
            else:
                read += piece
            if scanner.done or (self._ended and scanner.bare):
                return read
            if self._ended:
                return None
            yield

    def _call_object(self) -> Reading[bool]:
        """Read `{"name": ..., "arguments": {...}}` as a call; False if it is none or breaks off."""
        if not (yield from self._accept("{")):
            return False
        held: str | None = None  # arguments that came before the name
        argued = False
        while True:
            yield from self._space()
            key = _string((yield from self._string()))
            yield from self._space()
            if key not in CALL_KEYS or not (yield from self._accept(":")):
                return False
            yield from self._space()
            if key == "name":
                name = _string((yield from self._string()))
                if self._begun or name is None or not self._call(name):
                    return False
                if held is not None:
                    self._argue(held)
            elif key not in _ARGUMENTS:
                if not (yield from self._value()):
                    return False
            elif argued:
                return False
            else:
                argued = True
                if self._begun and (yield from self._peek()) == "{":
                    if (yield from self._value(stream=True)) is None:
                        return False
                else:
                    value = yield from self._value()
                    if not value:
                        return False
                    held = _unwrapped(value)
                    if self._begun:
                        self._argue(held)
            yield from self._space()
            if not (yield from self._accept(",")):
                break
        if not (yield from self._accept("}")) or not self._begun:
            return False
        if not argued:
            self._argue("{}")
        self._end_call()
        return True

    def _string(self) -> Reading[str | None]:
        """Read a JSON string, quotes included; None if something else stands there."""
        if (yield from self._peek()) != '"':
            return None
        return (yield from self._value())


class JsonValue:
    """Finds the end of a JSON value that comes in pieces."""

    _IN_STRING = re.compile(r'["\\]')
    _OUTSIDE = re.compile(r'["{}\[\]]')
    _BARE_END = re.compile(r"[,}\]\s]")

    def __init__(self) -> None:
        self.done = False
        self.bare = False
        """Whether it is a number, true, false or null, which ends where something else begins, or with the text."""
        self._depth = 0
        self._quoted = self._escaped = False

    def feed(self, text: str, at: int) -> int:
        """Read from position `at` on; returns where the value ends, or the end of the text if it goes on."""
        while at < len(text) and not self.done:
            if self._escaped:
                self._escaped = False
                at += 1
            elif self.bare or (not self._quoted and not self._depth and text[at] not in '"{['):
                self.bare = True
                end = self._BARE_END.search(text, at)
                self.done = end is not None
                return end.start() if end else len(text)
            else:
                found = (self._IN_STRING if self._quoted else self._OUTSIDE).search(text, at)
                if found is None:
                    return len(text)
                at = found.end()
                self._meet(found[0])
        return at

    def _meet(self, character: str) -> None:
        match character:
            case "\\":
                self._escaped = True
                return
            case '"':
                self._quoted = not self._quoted
            case "{" | "[":
                self._depth += 1
            case _:
                self._depth -= 1
        self.done = not self._quoted and self._depth <= 0


CALL_KEYS = ("name", "arguments", "parameters", "type", "id")
"""Keys of a call's object; an object with any other key is data of another kind."""
_ARGUMENTS = ("arguments", "parameters")


def _overlap(text: str, marker: str) -> int:
    """Length of the longest proper prefix of `marker` that `text` ends with."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)


def _string(read: str | None) -> str | None:
    try:
        value = json.loads(read or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _unwrapped(value: str) -> str:
    """Return arguments as an object also where a model has written a string that holds it, or null for none."""
    if value == "null":
        return "{}"
    inner = _string(value)
    return inner if inner is not None and _is_object(inner) else value


def _is_object(text: str) -> bool:
    try:
        text.encode()
        return isinstance(json.loads(text, parse_constant=_no_constant), dict)
    except (ValueError, RecursionError):
        return False


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
