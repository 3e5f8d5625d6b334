"""From a client's grammar to llguidance's notation. Pure; refuses what would not be enforced, naming what and why."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

from llguidance import regex_to_lark

from engine.request import RequestError
from engine.wire import Grammar

_WHITESPACE = r"[ \t\r\n]{1,20}"
"""Wherever JSON allows whitespace. Without a bound a model can fill its answer with it."""
_OPTIONS = '%llguidance {"no_forcing": true}'
"""Every token that the grammar allows may be sampled; llguidance would force a tokenization of its own where it can."""
_LARK_ATTRIBUTE = re.compile(r"^\s*[?!]*[\w-]+\s*\[[^\]\n]*\b(temperature|max_tokens|stop)\s*=", re.MULTILINE)
_COMBINING = {"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef"}


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """How large a grammar may be, and what its compilation may cost.

    `depth`: nested values of a schema; `nodes`: values of a schema, or choices; `multiple_of`: of `multipleOf` without
    its decimal point, for there is a state for each remainder; `cpu_seconds` and `memory_bytes`: of one compilation.
    """

    depth: int = 64
    nodes: int = 20_000
    multiple_of: int = 10_000
    cpu_seconds: float = 2.0
    memory_bytes: int = 1 << 30


def to_llguidance(grammar: Grammar, limits: GrammarLimits) -> str:
    """The grammar in llguidance's notation; whether it compiles is seen when it is compiled.

    Raises:
        RequestError: it is too large, not well-formed, or asks for what would not be enforced.
    """
    match grammar.kind:
        case "json_schema":
            return _json_schema(_parse(grammar.source, limits), limits, grammar.lenient)
        case "json_object":
            return _json_schema({"type": "object"}, limits, lenient=False)
        case "regex":
            return _lark(f"start: /{regex_to_lark(grammar.source, '')}/")
        case "choice":
            return _choice(_parse(grammar.source, limits))
        case "lark":
            if found := _LARK_ATTRIBUTE.search(grammar.source):
                _refuse(f"{found[1]}: not supported in a grammar; leave it out")
            return _lark(grammar.source)


def _lark(source: str) -> str:
    # The options at the end, so that lines in error messages are the client's.
    return json.dumps({"grammars": [{"lark_grammar": f"{source}\n{_OPTIONS}\n"}]})


def _parse(source: str, limits: GrammarLimits) -> Any:
    try:
        value = json.loads(source, parse_constant=_not_json, parse_float=_finite)
    except RecursionError:
        _refuse(f"nested more than {limits.depth} levels deep; make it flatter")
    except ValueError as error:
        _refuse(f"not valid JSON: {error}")
    for count, (_, _, depth) in enumerate(_walk(value)):
        if depth > limits.depth:
            _refuse(f"nested more than {limits.depth} levels deep; make it flatter")
        if count > limits.nodes:
            _refuse(f"more than {limits.nodes} values; make it smaller")
    return value


def _walk(root: Any) -> Iterator[tuple[str, Any, int]]:
    """Every value below `root` and itself, with its path and depth."""
    stack: list[tuple[str, Any, int]] = [("#", root, 0)]
    while stack:
        path, value, depth = stack.pop()
        yield path, value, depth
        if isinstance(value, dict):
            stack += [(f"{path}/{key}", item, depth + 1) for key, item in value.items()]
        elif isinstance(value, list):
            stack += [(f"{path}/{index}", item, depth + 1) for index, item in enumerate(value)]


def _json_schema(schema: Any, limits: GrammarLimits, lenient: bool) -> str:
    if not isinstance(schema, dict | bool):
        _refuse("a JSON schema is an object, true or false")
    if isinstance(schema, bool):
        schema = {"anyOf": [schema]}
    if "x-guidance" in schema:
        _refuse("x-guidance: not supported; leave it out")
    _check_multiples(schema, limits)
    options = {"whitespace_pattern": _WHITESPACE, "lenient": lenient}
    return _lark(f"start: %json {json.dumps(schema | {'x-guidance': options})}")


def _check_multiples(schema: Any, limits: GrammarLimits) -> None:
    """Refuse multiples that take an automaton too large, or that llguidance would compute the product of wrongly."""
    common, combined = 1, False
    for path, value, _ in _walk(schema):
        if not isinstance(value, dict):
            continue
        combined |= not _COMBINING.isdisjoint(value)
        multiple = value.get("multipleOf")
        if isinstance(multiple, int | float) and not isinstance(multiple, bool) and multiple:
            integer = _without_point(multiple)
            if integer > limits.multiple_of:
                _refuse(
                    f"{path}/multipleOf: more than {limits.multiple_of} without its decimal point; choose a rounder one"
                )
            common = math.lcm(common, integer)
    if combined and common > limits.multiple_of:
        _refuse(f"multipleOf: the multiples have none in common up to {limits.multiple_of}; leave some out")


def _without_point(number: float) -> int:
    """2.50 -> 25, 300 -> 300."""
    _, digits, exponent = Decimal(repr(abs(number))).normalize().as_tuple()
    integer: int = int("".join(map(str, digits))) * 10 ** max(int(exponent), 0)
    return integer


def _choice(choices: Any) -> str:
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        _refuse("a JSON list of at least one string is expected")
    # One regular expression: as alternatives of a grammar, thousands of choices would be too many to follow.
    escaped = (re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", choice) for choice in choices)
    return _lark(f"start: /{regex_to_lark('|'.join(escaped), '')}/")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large a number")
    return number


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _refuse(message: str) -> NoReturn:
    raise RequestError(f"grammar: {message}")
