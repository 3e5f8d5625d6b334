"""Visits all texts of a request that a model reads or has to write, and says how each may be changed. Pure.

Prompts are made of more than messages: names, descriptions and schemas of tools, and calls that are replayed. What an
answer has to match reaches no prompt, but comes out of the model and into the prompts of the turns that continue it.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.protocol.output_format import OutputFormat
from gateway.protocol.requests import Message, TurnRequest
from gateway.protocol.tools import Tool, ToolUse


class TextKind(enum.Enum):
    """How a text may be changed in which a rule finds something."""

    PROSE = "prose"
    """Any part may be replaced."""
    JSON = "json"
    """The text is a JSON document: parts of its strings may be replaced."""
    ID = "id"
    """The text is the id of a call: another id may take its place everywhere."""
    FIXED = "fixed"
    """The text may not be changed: a name, a key or a value that a schema compares with, without which a call or an
    answer would not be what the client has asked for."""


Visit = Callable[[str, TextKind, str], str]
"""Function that is given a text, its kind and the path of its field, and returns what the model may see of it."""

_ANNOTATIONS = frozenset({"title", "description", "$comment"})
_DATA = frozenset({"default", "example", "examples"})
"""Keywords whose values are shown to the reader of a schema, and enforced by nobody."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are schemas by name."""


def visited(request: TurnRequest, visit: Visit) -> TurnRequest:
    """Return the request with each of its texts replaced by what the visitor returns."""
    instructions, prompt, tools, format = request.instructions, request.prompt, request.tools, request.format
    ids: dict[str, str] = {}
    if instructions is not None:
        instructions = visit(instructions, TextKind.PROSE, "instructions")
    if isinstance(prompt, str):
        prompt = visit(prompt, TextKind.PROSE, "prompt")
    if tools is not None and tools.active:
        tools = _tools(tools, visit)
    if format is not None:
        _format(format, visit)
    messages = tuple(_message(message, ids, visit) for message in request.messages)
    return replace(request, instructions=instructions, prompt=prompt, tools=tools, messages=messages)


def _message(message: Message, ids: dict[str, str], visit: Visit) -> Message:
    """`ids`: what stands for the id of a call. Outputs answer calls before them, or such that an earlier turn has made
    or was asked about.
    """
    calls = []
    for call in message.calls:
        ids[call.id] = visit(call.id, TextKind.ID, "input")
        name = visit(call.name, TextKind.FIXED, "input")
        calls.append(replace(call, id=ids[call.id], name=name, arguments=visit(call.arguments, TextKind.JSON, "input")))
    answers = ids.get(message.answers, message.answers) if message.answers is not None else None
    return replace(
        message, content=visit(message.content, TextKind.PROSE, "input"), calls=tuple(calls), answers=answers
    )


def _tools(tools: ToolUse, visit: Visit) -> ToolUse:
    return replace(tools, tools=tuple(_tool(tool, visit) for tool in tools.tools))


def _tool(tool: Tool, visit: Visit) -> Tool:
    path = tool.param.removesuffix(".parameters")
    visit(tool.name, TextKind.FIXED, f"{path}.name")
    description = tool.description and visit(tool.description, TextKind.PROSE, f"{path}.description")
    parameters = tool.parameters and _schema(tool.parameters, visit, tool.param)
    return replace(tool, description=description, parameters=parameters)


def _format(format: OutputFormat, visit: Visit) -> None:
    """Of a schema its reader is the grammar, which has no use for descriptions."""
    source, kind = format.grammar.source, format.grammar.kind

    def fixed(text: str, kind: TextKind, path: str) -> str:
        return visit(text, kind, path) if kind is TextKind.FIXED else text

    if kind == "json_schema":
        _schema(msgspec.json.decode(source), fixed, format.param)
    elif kind == "choice":
        _data(msgspec.json.decode(source), fixed, format.param, TextKind.FIXED)
    else:
        fixed(source, TextKind.FIXED, format.param)


def _schema(schema: Any, visit: Visit, path: str) -> Any:
    """A JSON schema, which protocol code has checked for its depth."""
    if isinstance(schema, list):
        return [_schema(item, visit, path) for item in schema]
    if not isinstance(schema, Mapping):
        return _data(schema, visit, path, TextKind.FIXED)
    out = {}
    for key, value in schema.items():
        visit(key, TextKind.FIXED, path)
        if key in _ANNOTATIONS or key in _DATA:
            out[key] = _data(value, visit, path, TextKind.PROSE)
        elif key in _NAMED and isinstance(value, Mapping):
            names = (visit(name, TextKind.FIXED, path) for name in value)
            out[key] = {name: _schema(item, visit, path) for name, item in zip(names, value.values(), strict=True)}
        else:
            out[key] = _schema(value, visit, path)
    return out


def _data(value: Any, visit: Visit, path: str, kind: TextKind) -> Any:
    """A value of a schema. A number that would be replaced becomes a string."""
    if isinstance(value, str):
        return visit(value, kind, path)
    if isinstance(value, list):
        return [_data(item, visit, path, kind) for item in value]
    if isinstance(value, Mapping):
        return {visit(key, TextKind.FIXED, path): _data(item, visit, path, kind) for key, item in value.items()}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    spelled = json.dumps(value)
    shown = visit(spelled, kind, path)
    return value if shown == spelled else shown
