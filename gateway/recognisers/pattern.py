"""An operator's own recogniser: a regular expression, run by RE2, which takes linear time whatever the expression.

RE2 does not tell how long a match may be, which is how much of a streamed answer must be held back. The parser of
Python's `re` does, and has no public name: `tests/test_internals.py` fails when it moves.
"""

from __future__ import annotations

import re
import warnings
from typing import Any, cast

import re2

from gateway.recognisers.recogniser import Match

MAX_LENGTH = 512
"""Characters that a match may have; as many are held back while an answer streams."""
_ANCHORS = ("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING")
_SURROGATES = re.compile("[\ud800-\udfff]")


class Pattern:
    """Finds what a regular expression matches. It must have a longest match, and may not ask for the text's ends."""

    def __init__(self, expression: str) -> None:
        """
        Raises:
            ValueError: the expression cannot be used; says why.
        """
        self._pattern = _compiled(expression)
        self.reach = _longest(expression) + 1

    def find(self, text: str, start: int) -> Match | None:
        # Half of a surrogate pair cannot be encoded; what stands for it here has the same length.
        found = self._pattern.search(_SURROGATES.sub("\ufffd", text), start)
        return Match(found.start(), found.end()) if found else None

    def pending(self, text: str, start: int) -> int:
        return max(start, len(text) - self.reach + 1)


def _compiled(expression: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        raise ValueError(f"RE2 cannot compile it: {error}") from None


def _longest(expression: str) -> int:
    """Characters of the longest match, by Python's parser, which reads what RE2 reads, nearly."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            parsed = re._parser.parse(expression)  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise ValueError(f"it cannot be read: {error}") from None
    if any(anchor in f"{parsed.data!r}" for anchor in _ANCHORS):
        raise ValueError("it asks for the beginning or end of the text; leave out ^ and $, or use \\b")
    shortest, longest = cast("tuple[int, int]", parsed.getwidth())
    if shortest < 1:
        raise ValueError("it matches nothing at all; have it match one character at least")
    if longest > MAX_LENGTH:
        raise ValueError(f"a match may have {MAX_LENGTH} characters; write {{0,20}} instead of * and {{1,20}} for +")
    return longest
