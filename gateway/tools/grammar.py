"""Grammars, in llguidance's Lark, that hold an answer to calls in one format.

What is enforced is the whole answer: calls only, or either free text until a call begins or the text that a format
asks for. The arguments of each function follow its own schema.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from gateway.tools.parser import CALL_KEYS

ANYTHING: Mapping[str, Any] = {"type": "object"}

_PLAIN = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "title",
    "description",
    "$defs",
    "definitions",
    "$schema",
}
"""Keywords of a schema that can be written as a list of keyword arguments."""


class Function(Struct, frozen=True):
    """A function that may be called."""

    name: str
    schema: Mapping[str, Any]
    """JSON schema of the arguments."""


class Calls(Struct, frozen=True, kw_only=True):
    """The calls that an answer may make."""

    functions: Sequence[Function]
    required: bool
    """Whether at least one call must be made."""
    parallel: bool
    """Whether more than one call may be made."""
    text: str | None = None
    """What the answer may be instead of calls, as the right side of a rule; None is free text."""


Marker = Callable[[str], str]
"""Spells a marker for a grammar: as a token where the tokenizer has one, else as text."""


def hermes(calls: Calls, marker: Marker) -> str:
    """`<tool_call>`, a JSON object, `</tool_call>`; one call a line.

    Where text is free, an answer may also begin with the object, bare or in a block of code.
    """
    rules = [
        f"call: {marker('<tool_call>')} body",
        f'body: "\\n" ({_choice(calls)}) "\\n" {marker("</tool_call>")}',
        *_objects(calls, "arguments"),
    ]
    more = _repeated(calls, '"\\n" call')
    opened = ""
    if not calls.required and calls.text is None:
        opened = f"opened{_repeated(calls, 'opened')}"
        rules += _opened(calls)
    return _answer(calls, f"call{more}", rules, trigger=marker("<tool_call>"), triggered=f"body{more}", opened=opened)


def llama(calls: Calls, marker: Marker) -> str:
    """JSON objects separated by semicolons; free text does not begin like one."""
    rules = [f"call: {_choice(calls)}", *_objects(calls, "parameters")]
    more = _repeated(calls, '"; " call')
    # Beside an answer in JSON only the tag tells a call from it in time.
    tag = "" if calls.text is None else f"{marker('<|python_tag|>')} "
    return _answer(calls, f"{tag}call{more}", rules, text=_not_beginning_with("{"))


def mistral_list(calls: Calls, marker: Marker) -> str:
    """`[TOOL_CALLS]` and a list of JSON objects."""
    more = _repeated(calls, '", " call')
    rules = [f'body: " "? "[" call{more} "]"', f"call: {_choice(calls)}", *_objects(calls, "arguments")]
    begin = marker("[TOOL_CALLS]")
    return _answer(calls, f"{begin} body", rules, trigger=begin, triggered="body")


def mistral_named(calls: Calls, marker: Marker) -> str:
    """`[TOOL_CALLS]name[ARGS]{...}`, over and over."""
    begin = marker("[TOOL_CALLS]")
    rules = [f"body: {_choice(calls)}"]
    for index, function in enumerate(calls.functions):
        rules.append(f"f{index}: {_quoted(function.name)} {marker('[ARGS]')} a{index}")
        rules.append(f"a{index}: {_json(function.schema)}")
    more = _repeated(calls, f"{begin} body")
    return _answer(calls, f"{begin} body{more}", rules, trigger=begin, triggered=f"body{more}")


def pythonic(calls: Calls, marker: Marker) -> str:
    """`[name(argument=value, ...), ...]`, values in JSON; free text does not begin with a bracket."""
    rules = [f"call: {_choice(calls)}"]
    for index, function in enumerate(calls.functions):
        opened = _quoted(f"{function.name}(")
        rules.append(f'f{index}: {opened} k{index}_0 ")"')
        rules += _keywords(function, index)
    more = _repeated(calls, '", " call')
    return _answer(calls, f'"[" call{more} "]"', rules, text=_not_beginning_with("["))


def _answer(
    calls: Calls,
    required: str,
    rules: list[str],
    *,
    trigger: str | None = None,
    triggered: str = "",
    opened: str = "",
    text: str = "",
) -> str:
    """The whole grammar.

    Args:
        trigger: what ends free text and begins a call; `triggered`: what follows it.
        opened: calls without a trigger, which only the beginning of an answer can be; the rules have `OPENING`, what
            free text does not begin with for their sake.
        text: free text where there is no trigger.
    """
    if calls.required:
        start = [f"start: {required}"]
    elif calls.text is not None:
        start = [f"start: answer | {required}", f"answer: {calls.text}"]
    elif trigger is None:
        start = [f"start: TEXT | {required}", f"TEXT: {text}"]
    else:
        # A lazy lexeme ends with the first marker in it; a token is no part of any text.
        lazy = "[lazy]" if trigger.startswith('"') else ""
        start = [f"start: TEXT | head {triggered}", f"head{lazy}: TEXT {trigger}", r"TEXT: /(.|\n)*/"]
        if opened:
            start[0] += f" | {opened}"
            start[-1] += " & ~OPENING"
    return "\n".join(["%llguidance {}", *start, *rules, ""])


def _choice(calls: Calls) -> str:
    return " | ".join(f"f{index}" for index in range(len(calls.functions)))


def _repeated(calls: Calls, more: str) -> str:
    return f" ({more})*" if calls.parallel else ""


def _not_beginning_with(character: str) -> str:
    return rf"/(\s*[^\s\{character}](.|\n)*)?/"


def _objects(calls: Calls, arguments: str) -> list[str]:
    rules = []
    for index, function in enumerate(calls.functions):
        head = f'{{"name": {json.dumps(function.name)}, "{arguments}": '
        rules += [f'f{index}: {_quoted(head)} a{index} "}}"', f"a{index}: {_json(function.schema)}"]
    return rules


def _opened(calls: Calls) -> list[str]:
    """Rules for a call at the beginning of an answer. As whoever reads the answer takes any order of keys, text must
    not begin like a call whose first key is another one or is written with escapes.
    """
    begin = r"\s*(```(json)?\s*)?\{\s*"
    keys = "|".join(CALL_KEYS)
    rules = [
        rf'OPENING: /{begin}"([^"\\]*\\|({keys})")(.|\n)*/',
        f"opened: {' | '.join(f'o{index}' for index in range(len(calls.functions)))}",
        r"CLOSED: /\}\n?(```)?\n?/",
    ]
    for index, function in enumerate(calls.functions):
        head = rf'{begin}"name":\s*{re.escape(json.dumps(function.name))},\s*"arguments":\s*'
        rules += [f"OPENED{index}: /{head}/", f"o{index}: OPENED{index} a{index} CLOSED"]
    return rules


def _keywords(function: Function, index: int) -> list[str]:
    """Rules for the keyword arguments of a function, in the order of its schema: `k0` before the first one written,
    `m<n>` for what may follow.
    """
    schema = function.schema
    properties = schema.get("properties") or {}
    if not _is_plain(schema, properties):
        return [f'k{index}_0: "**" a{index}', f"a{index}: {_json(schema)}"]
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    required = set(schema.get("required") or ())
    rules = []
    for number, (name, value) in enumerate(properties.items()):
        own, following = _quoted(f"{name}="), number + 1
        written = f"v{index}_{number} m{index}_{following}"
        first, more = f"{own} {written}", f"{_quoted(f', {name}=')} {written}"
        if name not in required:
            first, more = f"{first} | k{index}_{following}", f"{more} | m{index}_{following}"
        rules += [f"k{index}_{number}: {first}", f"m{index}_{number}: {more}"]
        rules.append(f"v{index}_{number}: {_json({**_as_object(value), **shared})}")
    return [*rules, f'k{index}_{len(properties)}: ""', f'm{index}_{len(properties)}: ""']


def _is_plain(schema: Mapping[str, Any], properties: Any) -> bool:
    if not (set(schema) <= _PLAIN and isinstance(properties, dict)):
        return False
    required = schema.get("required") or []
    named = isinstance(required, list) and all(name in properties for name in required)
    written = all(name.isascii() and name.isidentifier() and not keyword.iskeyword(name) for name in properties)
    local = ("#/$defs/", "#/definitions/")
    return named and written and all(isinstance(each, str) and each.startswith(local) for each in _references(schema))


def _references(schema: Any) -> list[Any]:
    found, level = [], [schema]
    while level:
        value = level.pop()
        if isinstance(value, dict):
            found += [value["$ref"]] if "$ref" in value else []
            level += value.values()
        elif isinstance(value, list):
            level += value
    return found


def _as_object(schema: Any) -> Mapping[str, Any]:
    """A schema that is true or false, in the form that can carry options."""
    return schema if isinstance(schema, dict) else ({} if schema else {"not": {}})


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps(schema, ensure_ascii=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
