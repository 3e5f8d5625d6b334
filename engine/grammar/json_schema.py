"""Translates a JSON Schema for llguidance, and refuses what llguidance would silently fail to enforce. Pure.

Each rule stands for a case in which llguidance 1.9 lets through what the schema forbids; a test has an example of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NoReturn, TypeGuard

from engine.request import GrammarError

WHITESPACE = {"whitespace_pattern": r"[ \t\r\n]{1,20}"}
"""Whitespace allowed between JSON tokens. Without a bound a model can fill its answer with it."""
_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}
"""Escapes allowed in strings. Not \\u: a name in `properties` spelled with it would count as an additional property."""
_COMBINING = {"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef"}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LARGEST_INTEGER = 2**63 - 1
"""Integer that is exact as a bound, other than its neighbours."""
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Characters that JSON can write with \\u only."""
_PATTERN_UNIT = re.compile(
    r"""\\x\{(?P<braced>[0-9a-fA-F]+)\} | \\u\{(?P<wide>[0-9a-fA-F]+)\} | \\x(?P<byte>[0-9a-fA-F]{2})
    | \\u(?P<short>[0-9a-fA-F]{4}) | \\U(?P<long>[0-9a-fA-F]{8}) | \\(?P<letter>[ave])
    | \[(?:\^?\])?(?:\\.|[^\]\\])*\] | \\. | .""",
    re.VERBOSE | re.DOTALL,
)


def to_lark(
    schema: Any,
    *,
    depth: int,
    nodes: int,
    multiple_of: int,
    lenient: bool,
    spacing: Mapping[str, Any] | None = None,
) -> str:
    """Return the expression of llguidance's Lark dialect that matches JSON documents of `schema`.

    `depth`, `nodes`: most nested and most values of the schema; `multiple_of`: the largest `multipleOf`, decimal point
    left out; `lenient`: ignore keywords that cannot be enforced; `spacing`: llguidance's options for whitespace, if not
    ours.

    Raises:
        RequestError: it is no schema, too large, or would not be enforced; the message says where.
    """
    if not isinstance(schema, dict | bool):
        refuse("a JSON schema is an object, true or false")
    if isinstance(schema, bool):
        schema = {"anyOf": [schema]}
    if "x-guidance" in schema:
        refuse("x-guidance: not supported; leave it out")
    check_size(schema, depth, nodes)
    _check_multiples(schema, multiple_of)
    for path, value in _walk(schema):
        if isinstance(value, dict) and not lenient:
            _check(path, value)
    options = {**_ESCAPES, **(spacing or WHITESPACE), "lenient": lenient}
    return f"%json {json.dumps(schema | {'x-guidance': options})}"


def check_size(value: Any, depth: int, nodes: int) -> None:
    """Refuse JSON that is nested too deep or has too many values."""
    level, seen = [value], 0
    for _ in range(depth + 1):
        seen += len(level)
        if seen > nodes:
            refuse(f"more than {nodes} values; make it smaller")
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    refuse(f"nested more than {depth} levels deep; make it flatter")


def refuse(message: str) -> NoReturn:
    raise GrammarError(message)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _walk(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value with its path, root first. All of them: a `$ref` may point at any."""
    stack = [("#", root)]
    while stack:
        path, value = stack.pop()
        yield path, value
        if isinstance(value, dict):
            stack += [(f"{path}/{key}", item) for key, item in value.items()]
        elif isinstance(value, list):
            stack += [(f"{path}/{index}", item) for index, item in enumerate(value)]


def _check(path: str, schema: dict[str, Any]) -> None:
    for keyword in _BOUNDS:
        bound = schema.get(keyword)
        if _is_number(bound) and bound != _LARGEST_INTEGER:
            _check_exact(f"{path}/{keyword}", bound)
    for keyword in ("const", "enum"):
        for place, value in _walk(schema.get(keyword)):
            if _is_number(value):
                _check_exact(f"{path}/{keyword}{place[1:]}", value)
            elif isinstance(value, str):
                _check_writable(f"{path}/{keyword}", value)
            elif isinstance(value, dict):
                for name in value:
                    _check_writable(f"{path}/{keyword}", name)
    for keyword in ("properties", "required"):
        names = schema.get(keyword)
        for name in names if isinstance(names, dict | list) else ():
            if isinstance(name, str):
                _check_writable(f"{path}/{keyword}", name)
    patterns = schema.get("patternProperties")
    for pattern in [schema.get("pattern"), *(patterns if isinstance(patterns, dict) else ())]:
        if isinstance(pattern, str) and _has_unwritable(pattern):
            refuse(f"{path}: the pattern {pattern!r} asks for a control character, which is not supported")
    least, required = schema.get("minProperties"), schema.get("required")
    if _is_number(least) and least > 1 + (len(required) if isinstance(required, list) else 0):
        refuse(f"{path}/minProperties: at most one more than there are `required` properties; name more of them")


def _check_exact(path: str, number: float) -> None:
    if int(float(number)) != number if isinstance(number, int) else math.isinf(number):
        refuse(f"{path}: {number} cannot be told from its neighbours in floating point; choose a smaller one")


def _check_writable(path: str, text: str) -> None:
    if _UNWRITABLE.search(text):
        refuse(f"{path}: control characters other than \\b, \\f, \\n, \\r and \\t are not supported; leave them out")


def _has_unwritable(pattern: str) -> bool:
    """Whether a regular expression has a control character by itself; in a class of several it does no harm."""
    for unit in _PATTERN_UNIT.finditer(pattern):
        text = unit[0]
        if text.startswith("[") and len(inner := [*_PATTERN_UNIT.finditer(text[1:-1])]) == 1:
            (unit,) = inner
            text = unit[0]
        digits = unit["braced"] or unit["wide"] or unit["byte"] or unit["short"] or unit["long"]
        if digits:
            text = chr(int(digits, 16)) if int(digits, 16) < 0x80 else ""
        elif unit["letter"]:
            text = {"a": "\a", "v": "\v", "e": "\x1b"}[unit["letter"]]
        if len(text) == 1 and _UNWRITABLE.match(text):
            return True
    return False


def _check_multiples(schema: Any, most: int) -> None:
    """Refuse multiples whose automaton, with a state for each remainder, is too large.

    The product of multiples that meet in one place is wrong, too, where it exceeds 32 bits.
    """
    common, combined = 1, False
    for path, value in _walk(schema):
        if not isinstance(value, dict):
            continue
        combined |= not _COMBINING.isdisjoint(value)
        multiple = value.get("multipleOf")
        if _is_number(multiple) and multiple:
            integer = _without_point(multiple)
            if integer > most:
                refuse(f"{path}/multipleOf: more than {most} without its decimal point; choose a rounder one")
            common = math.lcm(common, integer)
    if combined and common > most:
        refuse(f"multipleOf: the multiples have none in common up to {most}; leave some out")


def _without_point(number: float) -> int:
    """Return the number without its decimal point: 2.50 -> 25, 300 -> 300."""
    _, digits, exponent = Decimal(repr(abs(number))).normalize().as_tuple()
    integer: int = int("".join(map(str, digits))) * 10 ** max(int(exponent), 0)
    return integer


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
