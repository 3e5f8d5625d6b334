"""Tells control tokens that a chat template writes from those that clients spell out in their text. Pure.

A rendered conversation is one string, in which nothing says who wrote what. So text of clients carries a mark wherever
it spells a control token, where its end may begin one, and where its beginning may go on with one that the template has
begun. A token with a mark inside is no control token, whatever has been joined to make it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

# A Unicode noncharacter; it is removed from text first, so that nobody else can place it.
_MARK = "\ufdd0"
# The mark's form where a template writes JSON or Python's notation. Text may hold the same six characters.
_ESCAPE = "\\ufdd0"
_RENDERED = re.compile(f"{_MARK}|{re.escape(_ESCAPE)}")


def without_marks(text: str) -> str:
    """Return the text as its author wrote it."""
    return text.replace(_MARK, "")


class Marked(str):
    """Text of a client. Templates read it as it was written; its marks show where it is joined to other text.

    What is cut out of it, or made of it by a method, is text of the client's too and marked anew.
    """

    _plain: str
    _mark: Callable[[str], Marked]

    __slots__ = ("_mark", "_plain")

    def __new__(cls, text: str, plain: str, mark: Callable[[str], Marked]) -> Marked:
        marked = super().__new__(cls, text)
        marked._plain, marked._mark = plain, mark
        return marked

    def __hash__(self) -> int:
        return hash(self._plain)

    def __iter__(self) -> Iterator[str]:
        return map(self._mark, self._plain)


def _on_plain(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def call(self: Marked, *args: Any, **keywords: Any) -> Any:
        plain = (arg._plain if isinstance(arg, Marked) else arg for arg in args)
        result = method(self._plain, *plain, **keywords)
        if isinstance(result, str):
            return self._mark(result)
        if isinstance(result, list | tuple):
            return type(result)(map(self._mark, result))
        return result

    call.__name__ = name
    return call


# What puts text together (`+`, `%`, `join`, `format`) keeps the marks where they are.
_JOINING = {"encode", "format", "format_map", "join", "maketrans"}
_READING = {f"__{name}__" for name in ("contains", "eq", "ge", "getitem", "gt", "le", "len", "lt", "ne")}
for _name in vars(str):
    if _name in _READING or not (_name.startswith("_") or _name in _JOINING):
        setattr(Marked, _name, _on_plain(_name))


class Rendered:
    """A rendered text without its marks, and the positions of the marks."""

    def __init__(self, text: str) -> None:
        first, *rest = _RENDERED.split(text)
        self.text = "".join((first, *rest))
        self._marks = []
        at = len(first)
        for part in rest:
            self._marks.append(at)
            at += len(part)

    @property
    def marked(self) -> bool:
        return bool(self._marks)

    def imitates(self, start: int, end: int) -> bool:
        """Whether a client has written a part of the control token between these positions."""
        after = bisect_right(self._marks, start)
        if end - start == 1:  # there is no inside: both sides are marked
            return end in self._marks[after : after + 1] and start in self._marks[after - 1 : after]
        return after < len(self._marks) and self._marks[after] < end


class Imitations:
    """Marks text of clients.

    Args:
        tokens: how control tokens are spelled.
        literals: everything that the template writes itself.
    """

    def __init__(self, tokens: Collection[str], literals: Collection[str]) -> None:
        spelled = [*tokens, _ESCAPE]
        # Longest first, so that a token takes precedence over one that it contains.
        self._spelled = re.compile("|".join(map(re.escape, sorted(spelled, key=len, reverse=True))))
        self._reach = max(map(len, spelled))
        self._beginnings = {token[:end] for token in spelled for end in range(1, len(token))}
        ends = {literal[-size:] for literal in literals for size in range(1, self._reach)}
        whole = set(literals)
        self._rests: set[str] = set()
        """Ends of control tokens that the template may have begun."""
        self._parts: set[str] = set()
        """Beginnings of those ends, which the template may complete."""
        for token in spelled:
            for at in range(1, len(token)):
                if token[:at] in ends or any(token[start:at] in whole for start in range(at)):
                    self._rests.add(token[at:])
                    self._parts.update(token[at:end] for end in range(at + 1, len(token)))
        # Most text ends and begins with characters that exclude all of them.
        self._last = {beginning[-1] for beginning in self._beginnings}
        self._first = {rest[0] for rest in self._rests | self._parts}

    def mark(self, value: Any) -> Any:
        """Copy plain data with every string marked, keys included."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.mark(item) for item in value]
        return value

    def _text(self, text: str) -> Marked:
        plain = without_marks(text)
        marked = self._spelled.sub(_inside, plain)
        left = len(marked) - len(plain)
        for end in sorted({len(plain), len(plain.rstrip())}, reverse=True):
            if self._may_begin(plain[max(end - self._reach, 0) : end]):
                at = end + left  # all other marks come before it, except at the very end
                marked = marked[:at] + _MARK + marked[at:]
        if self._may_go_on(plain):
            marked = _MARK + marked
        return Marked(marked, plain, self._text)

    def _may_begin(self, text: str) -> bool:
        """Whether a control token may begin at the end of `text`."""
        return text[-1:] in self._last and any(text[start:] in self._beginnings for start in range(len(text)))

    def _may_go_on(self, text: str) -> bool:
        """Whether `text` may complete a control token that the template has begun."""
        if text[:1] not in self._first:
            return False
        return text in self._parts or any(text[:size] in self._rests for size in range(1, self._reach))


def _inside(spelled: re.Match[str]) -> str:
    token = spelled[0]
    return f"{token[0]}{_MARK}{token[1:]}" if len(token) > 1 else f"{_MARK}{token}{_MARK}"
