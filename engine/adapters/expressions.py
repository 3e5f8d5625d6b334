"""Checks regular expressions of `adapter_config.json`: peft's, limited to forms that cannot take exponential time.

RE2 would be linear whatever the expression, but knows no look-ahead, which adapters in use have. So their form is
checked with the parser of Python's `re`, which has no public name: `tests/test_internals.py` fails when it moves.
"""

from __future__ import annotations

import re
from functools import lru_cache
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

_MAX_LENGTH = 1024
_MAX_UNBOUNDED = 4
"""Most repetitions on any path through an expression, those that peft adds included: matching a module's name stays
below a few million steps."""


class ExpressionError(ValueError):
    """An expression cannot be used. The message says why, and what to write instead."""


@lru_cache(maxsize=16_384)
def compiled(expression: str) -> re.Pattern[str]:
    """Compile an expression. `re` keeps 512 itself; a config may have thousands, each matched against every module."""
    return re.compile(expression)


def repetitions(pattern: str, expression: str) -> int:
    """Count the repetitions of `expression`, which is what peft makes of `pattern`.

    Raises:
        ExpressionError: one of them is no regular expression, or the time to match is not bounded by a small
            polynomial. Both are looked at because what can stand alone need not be part of another one.
    """
    if len(pattern) > _MAX_LENGTH:
        raise ExpressionError(f"an expression has more than {_MAX_LENGTH} characters; shorten it")
    try:
        re.compile(pattern)
        compiled(expression)
        unbounded = _unbounded(_parser.parse(expression))
    except (re.error, RecursionError, OverflowError) as error:
        raise ExpressionError(f"{pattern!r} is not a regular expression: {error}") from error
    if unbounded > _MAX_UNBOUNDED:
        raise ExpressionError(
            f"{pattern!r} could take very long to match; use fewer repetitions and repeat no groups, or list the "
            "modules by name"
        )
    return unbounded


def _unbounded(parsed: Any) -> int:
    """Return the most repetitions on any path through a parsed expression; a repeated group counts as too many."""
    total = 0
    for operation, argument in parsed:
        if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
            _, most, body = argument
            simple = len(body) == 1 and body[0][0] in (
                _constants.ANY,
                _constants.IN,
                _constants.LITERAL,
                _constants.NOT_LITERAL,
            )
            if most != 1 and not simple:
                return _MAX_UNBOUNDED + 1
            total += 1 if most != 1 else _unbounded(body)
        elif operation is _constants.SUBPATTERN:
            total += _unbounded(argument[-1])
        elif operation is _constants.BRANCH:
            total += max(_unbounded(branch) for branch in argument[1])
        elif operation in (_constants.ASSERT, _constants.ASSERT_NOT):
            total += _unbounded(argument[1])
        elif operation is _constants.ATOMIC_GROUP:
            total += _unbounded(argument)
        elif operation is _constants.GROUPREF_EXISTS:
            return _MAX_UNBOUNDED + 1
    return total
