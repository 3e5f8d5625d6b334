"""Translates a client's grammar into llguidance's notation. Pure; refuses what would not be enforced, with a reason."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from llguidance import regex_to_lark

from engine.grammar import json_schema
from engine.grammar.json_schema import refuse
from engine.wire import Grammar

_OPTIONS = '%llguidance {"no_forcing": true}'
"""Options that allow every token that fits the grammar; llguidance would force its own tokenization where it can."""
_LARK_ATTRIBUTE = re.compile(r"^\s*[?!]*[\w-]+\s*\[[^\]\n]*\b(temperature|max_tokens|stop)\s*=", re.MULTILINE)
_LENIENT = re.compile(r'"lenient"\s*:\s*true')
_SPACING = {"whitespace_flexible": bool, "item_separator": str, "key_separator": str}
_LARK_JSON = re.compile(r"%json\s*(?=\{)")


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """Limits of a grammar's size and of the cost of its compilation.

    `depth`: nested values of a schema; `nodes`: values of a schema, or choices; `multiple_of`: a `multipleOf` without
    its decimal point, for there is a state for each remainder; `cpu_seconds` and `memory_bytes`: of one compilation.
    """

    depth: int = 64
    nodes: int = 20_000
    multiple_of: int = 10_000
    cpu_seconds: float = 2.0
    memory_bytes: int = 1 << 30


def to_llguidance(grammar: Grammar, limits: GrammarLimits) -> str:
    """Translate a grammar into llguidance's notation; only the compilation shows whether it is valid.

    Raises:
        RequestError: it is too large, not well-formed, or asks for what would not be enforced.
    """
    source, lenient = grammar.source, grammar.lenient
    match grammar.kind:
        case "json_schema":
            lark = f"start: {_schema(_parse(source), limits, lenient)}"
        case "json_object":
            lark = f"start: {_schema({'type': 'object'}, limits, lenient)}"
        case "regex":
            lark = f"start: /{regex_to_lark(source, '')}/"
        case "choice":
            lark = f"start: /{regex_to_lark(_alternatives(_parse(source), limits), '')}/"
        case "lark":
            lark = _checked_lark(source, limits)
    # The options come last, so that line numbers in error messages are the client's.
    return json.dumps({"grammars": [{"lark_grammar": f"{lark}\n{_OPTIONS}\n"}]})


def may_ignore(grammar: Grammar) -> bool:
    """Whether the grammar allows that keywords which cannot be enforced are ignored somewhere in it."""
    return grammar.lenient or (grammar.kind == "lark" and _LENIENT.search(grammar.source) is not None)


def _schema(schema: Any, limits: GrammarLimits, lenient: bool, spacing: dict[str, Any] | None = None) -> str:
    return json_schema.to_lark(
        schema,
        depth=limits.depth,
        nodes=limits.nodes,
        multiple_of=limits.multiple_of,
        lenient=lenient,
        spacing=spacing,
    )


def _alternatives(choices: Any, limits: GrammarLimits) -> str:
    """Join choices to one regular expression: thousands of alternatives of a grammar would be too slow to follow."""
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        refuse("a JSON list of at least one string is expected")
    json_schema.check_size(choices, limits.depth, limits.nodes)
    return "|".join(re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", choice) for choice in choices)


def _checked_lark(source: str, limits: GrammarLimits) -> str:
    """Return a Lark grammar whose JSON schemas keep to the same rules as others.

    A schema in it may have options under `x-guidance`: `lenient`, separators, and whether there is whitespace.
    """
    if found := _LARK_ATTRIBUTE.search(source):
        refuse(f"{found[1]}: not supported in a grammar; leave it out")
    checked, end = [], 0
    for found in _LARK_JSON.finditer(source):
        if found.start() < end:
            continue
        try:
            schema, after = json.JSONDecoder().raw_decode(source, found.end())
            json.dumps(schema, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            refuse("an escape in a JSON schema stands for half a character; leave it out")
        except (ValueError, RecursionError):
            continue  # llguidance reports what is wrong with it, with the place
        options = schema.pop("x-guidance", {})
        lenient = isinstance(options, dict) and options.pop("lenient", False) is True
        checked += [source[end : found.start()], _schema(schema, limits, lenient, _spacing(options))]
        end = after
    return "".join([*checked, source[end:]])


def _spacing(options: Any) -> dict[str, Any]:
    if not isinstance(options, dict) or not all(isinstance(options[key], _SPACING.get(key, ())) for key in options):
        refuse(f"x-guidance: only lenient, {', '.join(_SPACING)} are supported; leave out the rest")
    # Flexible whitespace would be unbounded.
    return options if options.get("whitespace_flexible") is False else options | json_schema.WHITESPACE


def _parse(source: str) -> Any:
    try:
        value = json.loads(source, parse_constant=_not_json, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()  # escapes may stand for half a character
    except RecursionError:
        refuse("nested too deep; make it flatter")
    except ValueError as error:
        refuse(f"not valid JSON: {error}")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large a number")
    return number


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
