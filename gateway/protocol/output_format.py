"""Structured output: what a client wants its answer to match, as the grammar that an engine enforces.

Three spellings become one `OutputFormat`: the Responses API's `text.format`, chat completions' `response_format`, and
vLLM's `structured_outputs`. Checked here is what costs nothing to check: shape, size and depth. Whether a schema,
expression or grammar makes sense is the engine's to say; what it refuses is told under the field named here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args

import msgspec
from llguidance.gbnf_to_lark import gbnf_to_lark
from msgspec import Struct

from engine.wire import Grammar
from gateway.errors import invalid_value, missing_parameter, unknown_parameter
from gateway.protocol.nesting import json_depth

MAX_SOURCE_BYTES = 131_072
"""Largest schema, expression, grammar or list of choices, in UTF-8; engines accept no larger one."""
MAX_GBNF_BYTES = 8_192
"""Largest GBNF grammar in bytes: less than others, because it is translated before the request may go on."""
MAX_DEPTH = 64
"""Most levels of objects and lists in a schema."""
MAX_CHOICES = 1_000

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

_TYPES: Mapping[type, str] = {dict: "an object", list: "a list", str: "a string"}
T = TypeVar("T")

Verbosity = Literal["low", "medium", "high"]
"""How wordy an answer should be: accepted, without effect, as no model here takes it."""

TEXT: dict[str, Any] = {"type": "text"}


class OutputFormat(Struct, frozen=True):
    """A grammar for the answer, and the field it came from."""

    grammar: Grammar
    param: str
    """Path of the field that holds the grammar."""
    shown: dict[str, Any]
    """The format as a response repeats it in `text.format`."""

    @property
    def is_json(self) -> bool:
        return self.grammar.kind in ("json_schema", "json_object")

    def holds(self, text: str) -> bool:
        """Whether a finished answer is in the format, as far as can be told without the grammar: JSON is JSON."""
        if not self.is_json:
            return True
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


def parse_text_config(value: Any) -> OutputFormat | None:
    """Return the format that a response's `text` asks for; None is free text.

    Raises:
        InvalidRequest: `param` is the path of what is wrong.
    """
    if value is None:
        return None
    text = _object(value, "text", ("format", "verbosity"))
    if text.get("verbosity") not in (None, *get_args(Verbosity)):
        raise invalid_value("text.verbosity", f"expected {' or '.join(get_args(Verbosity))}")
    return _format(text.get("format"), "text.format", schema_in=None)


def parse_response_format(value: Any) -> OutputFormat | None:
    """Return the format that a chat completion's `response_format` asks for; None is free text.

    Raises:
        InvalidRequest: `param` is the path of what is wrong.
    """
    return _format(value, "response_format", schema_in="json_schema")


def parse_structured_outputs(value: Any) -> OutputFormat | None:
    """The format that vLLM's `structured_outputs` asks for: exactly one of `json`, `json_object`, `regex`, `choice` and
    `grammar` (Lark's notation, or GBNF).

    Raises:
        InvalidRequest: `param` is the path of what is wrong.
    """
    if value is None:
        return None
    known = ("json", "json_object", "regex", "choice", "grammar")
    given = {
        key: item for key, item in _object(value, "structured_outputs", known).items() if item not in (None, False)
    }
    if len(given) != 1:
        raise invalid_value("structured_outputs", f"set exactly one of {', '.join(known)}")
    ((key, item),) = given.items()
    return _structured(key, item, f"structured_outputs.{key}")


def parse_guided(**guided: Any) -> OutputFormat | None:
    """Return the format that vLLM's older parameters ask for: `json` is the value of `guided_json`, and so on.

    Raises:
        InvalidRequest: `param` is the path of what is wrong; two are set.
    """
    given = [(key, item) for key, item in guided.items() if item is not None]
    return one_format(*(_structured(key, item, f"guided_{key}") for key, item in given))


def _structured(key: str, item: Any, path: str) -> OutputFormat:
    match key:
        case "json":
            schema = _decoded(item, path) if isinstance(item, str) else item
            shown = {"type": "json_schema", "name": "json", "schema": schema}
            return OutputFormat(_schema(schema, path, lenient=True), path, shown)
        case "json_object":
            return OutputFormat(Grammar("json_object", ""), path, {"type": "json_object"})
        case "regex":
            return OutputFormat(Grammar("regex", _source(item, path)), path, {"type": "regex", "pattern": item})
        case "choice":
            return OutputFormat(_choices(item, path), path, {"type": "choice", "choices": item})
        case _:
            syntax = "gbnf" if "::=" in _source(item, path) else "lark"
            shown = {"type": "grammar", "syntax": syntax, "definition": item}
            return OutputFormat(_SYNTAXES[syntax](item, path), path, shown)


def one_format(*formats: OutputFormat | None) -> OutputFormat | None:
    """Return the only format of a request, which may spell it in one of several fields.

    Raises:
        InvalidRequest: two are set.
    """
    given = [format for format in formats if format is not None]
    if len(given) > 1:
        first, second = (format.param.partition(".")[0] for format in given[:2])
        raise invalid_value(second, f"{first} sets a format already; send one of them")
    return given[0] if given else None


def checked_schema(value: Any, path: str) -> str:
    """Encode a JSON schema as JSON, after checking size and depth.

    Raises:
        InvalidRequest: it is no object, too large or too deep.
    """
    if not isinstance(value, dict):
        raise invalid_value(path, f"expected a JSON schema (an object), got {type_name(value)}")
    if json_depth(value, MAX_DEPTH) > MAX_DEPTH:
        raise invalid_value(path, f"nested deeper than {MAX_DEPTH} levels; use $defs and $ref")
    return _source(msgspec.json.encode(value).decode(), path)


def checked_name(value: Any, path: str) -> str:
    """Check a name as OpenAI allows it for schemas and functions.

    Raises:
        InvalidRequest: it is missing, or has other characters or more of them.
    """
    if value is None:
        raise missing_parameter(path)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise invalid_value(path, "expected 1 to 64 letters, digits, underscores and dashes")
    return value


def checked_type(value: Any, kind: type[T], path: str) -> T:
    """A value that must have this type.

    Raises:
        InvalidRequest: it has another one.
    """
    if not isinstance(value, kind):
        raise invalid_value(path, f"expected {_TYPES[kind]}, got {type_name(value)}")
    return value


def type_name(value: Any) -> str:
    """Return JSON's name of a value's type, roughly."""
    return "null" if value is None else type(value).__name__


def _format(value: Any, path: str, *, schema_in: str | None) -> OutputFormat | None:
    """`schema_in`: the key under which this spelling nests what belongs to a schema."""
    if value is None:
        return None
    match checked_type(value, dict, path).get("type"):
        case "text":
            _object(value, path, ("type",))
            return None
        case "json_object":
            # llama.cpp and Together have a schema next to this type.
            schema = _object(value, path, ("type", "schema") if schema_in else ("type",)).get("schema")
            if schema is not None:
                return _structured("json", schema, f"{path}.schema")
            return OutputFormat(Grammar("json_object", ""), f"{path}.type", {"type": "json_object"})
        case "json_schema" if schema_in:
            where = f"{path}.{schema_in}"
            _object(value, path, ("type", schema_in))
            return _named_schema(_required(value, schema_in, path), where, ())
        case "json_schema":
            return _named_schema(value, path, ("type",))
        case "regex":
            pattern = _required(_object(value, path, ("type", "pattern")), "pattern", path)
            return OutputFormat(Grammar("regex", _source(pattern, f"{path}.pattern")), f"{path}.pattern", value)
        case "choice":
            choices = _required(_object(value, path, ("type", "choices")), "choices", path)
            return OutputFormat(_choices(choices, f"{path}.choices"), f"{path}.choices", value)
        case "grammar":
            definition = _required(_object(value, path, ("type", "syntax", "definition")), "definition", path)
            syntax = value.get("syntax", "lark")
            if not isinstance(syntax, str) or syntax not in _SYNTAXES:
                raise invalid_value(f"{path}.syntax", f"expected {', '.join(_SYNTAXES)}")
            where = f"{path}.definition"
            return OutputFormat(_SYNTAXES[syntax](_source(definition, where), where), where, value)
        case None:
            raise missing_parameter(f"{path}.type")
        case other:
            raise invalid_value(
                f"{path}.type", f"{other!r:.80} is none of text, json_object, json_schema, regex, choice, grammar"
            )


def _named_schema(value: Any, path: str, extra: tuple[str, ...]) -> OutputFormat:
    fields = _object(value, path, (*extra, "name", "schema", "strict", "description"))
    name = checked_name(fields.get("name"), f"{path}.name")
    for key, type_ in (("strict", bool), ("description", str)):
        if not isinstance(fields.get(key), type_ | None):
            raise invalid_value(f"{path}.{key}", f"expected {type_.__name__}, got {type_name(fields[key])}")
    schema = _required(fields, "schema", path)
    shown = {"type": "json_schema", "name": name, "schema": schema}
    shown |= {key: fields[key] for key in ("strict", "description") if fields.get(key) is not None}
    grammar = _schema(schema, f"{path}.schema", lenient=not fields.get("strict"))
    return OutputFormat(grammar, f"{path}.schema", shown)


def _schema(value: Any, path: str, *, lenient: bool) -> Grammar:
    return Grammar("json_schema", checked_schema(value, path), lenient)


def _choices(value: Any, path: str) -> Grammar:
    if not isinstance(value, list) or not all(isinstance(choice, str) for choice in value):
        raise invalid_value(path, "expected a list of strings")
    if not 1 <= len(value) <= MAX_CHOICES:
        raise invalid_value(path, f"expected 1 to {MAX_CHOICES} choices, got {len(value)}")
    if not all(value):
        raise invalid_value(path, "a choice is empty; remove it")
    return Grammar("choice", _source(msgspec.json.encode(value).decode(), path))


def _gbnf(source: str, path: str) -> Grammar:
    if len(source.encode()) > MAX_GBNF_BYTES:
        raise invalid_value(path, f"a GBNF grammar may have {MAX_GBNF_BYTES} bytes; shorten it or use Lark's notation")
    try:
        lark: str = gbnf_to_lark(source)
    except (Exception, RecursionError) as error:  # a translator of somebody else's, fed with anything at all
        raise invalid_value(path, f"not a GBNF grammar: {str(error)[:200]}") from None
    return Grammar("lark", _source(lark, path))


_SYNTAXES: Mapping[str, Callable[[str, str], Grammar]] = {
    "lark": lambda source, path: Grammar("lark", source),
    "regex": lambda source, path: Grammar("regex", source),
    "gbnf": _gbnf,
}


def _source(value: Any, path: str) -> str:
    source = checked_type(value, str, path)
    if not source:
        raise invalid_value(path, "empty")
    if len(source.encode()) > MAX_SOURCE_BYTES:
        raise invalid_value(path, f"larger than {MAX_SOURCE_BYTES} bytes; shorten it")
    return source


def _decoded(source: str, path: str) -> Any:
    try:
        return msgspec.json.decode(_source(source, path))
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_value(path, f"not valid JSON: {error}") from None


def _required(fields: Mapping[str, Any], key: str, path: str) -> Any:
    if fields.get(key) is None:
        raise missing_parameter(f"{path}.{key}")
    return fields[key]


def _object(value: Any, path: str, known: tuple[str, ...]) -> dict[str, Any]:
    fields = checked_type(value, dict, path)
    for key in fields:
        if key not in known:
            raise unknown_parameter(f"{path}.{key}")
    return fields
