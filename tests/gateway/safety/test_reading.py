"""What of a request the rules look at, and what they may do to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocol.output_format import parse_response_format, parse_structured_outputs
from gateway.protocol.requests import Message, ToolCall, TurnRequest
from gateway.protocol.tools import parse_tools
from gateway.safety.reading import TextKind, visited
from gateway.tools.formats import FORMATS
from gateway.tools.prompt import template_messages, template_tools

SCHEMA: dict[str, Any] = {
    "title": "A title",
    "type": "object",
    "properties": {
        "description": {"type": "string", "description": "A name like a keyword", "enum": ["one", "two", 3]},
        "default": {"type": "array", "items": {"pattern": "^a+$"}, "default": [{"given": "shown"}, 4.5, None]},
    },
    "required": ["description"],
    "$defs": {"inner": {"const": {"deep": [True, "fixed"]}, "x-note": "unknown"}},
}
TOOL = {"type": "function", "name": "lookup", "description": "Looks up", "parameters": SCHEMA}
ASKED = TurnRequest(
    model="auto",
    instructions="Be kind",
    messages=(
        Message("user", "a question"),
        Message("assistant", "let me see", (ToolCall("call-1", "lookup", '{"a": "b"}'),)),
        Message("tool", "an output", answers="call-1"),
    ),
    tools=parse_tools([TOOL], None, None, nested=False),
)


def seen(request: TurnRequest) -> list[tuple[str, TextKind, str]]:
    texts: list[tuple[str, TextKind, str]] = []

    def visit(text: str, kind: TextKind, path: str) -> str:
        texts.append((text, kind, path))
        return text

    assert visited(request, visit) == request
    return texts


def strings(value: Any) -> set[str]:
    """Every string in a value, keys included."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        return {*value, *(text for item in value.values() for text in strings(item))}
    return {text for item in value for text in strings(item)} if isinstance(value, list | tuple) else set()


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_nothing_reaches_a_template_unseen(format: Any) -> None:
    """Whatever strings a template is given, the rules have seen, but for those that we add ourselves."""
    assert ASKED.tools is not None
    given = template_messages(ASKED.messages, format, (), ASKED.instructions)
    texts = {text for text, _, _ in seen(ASKED)}
    ours = {"role", "content", "system", "user", "assistant", "tool", "tool_calls", "id", "type", "function", "name"}
    ours |= {"arguments", "tool_call_id", "description", "parameters", "object"}
    read = texts | {word for text in texts if text.startswith("{") for word in strings(json.loads(text))}
    unseen = strings([*given, *template_tools(ASKED.tools.tools)]) - ours - read
    joined = {text for text in unseen if "tool_call>" in text or "tool_response>" in text}  # written out for `neutral`
    for text in joined:
        assert any(part in text for part in ("let me see", "an output"))
    hashed = {text for text in unseen if format.name.startswith("mistral") and len(text) == 9}
    assert not unseen - joined - hashed


def test_only_prose_may_be_replaced_in_a_tool() -> None:
    """Names, keys and what a schema compares with are seen, but stay."""
    kinds = {text: kind for text, kind, path in seen(ASKED) if path.startswith("tools[0]")}
    prose = {"Looks up", "A title", "A name like a keyword", "shown", "4.5"}
    assert {text for text, kind in kinds.items() if kind is TextKind.PROSE} == prose
    fixed = {text for text, kind in kinds.items() if kind is TextKind.FIXED}
    assert {"lookup", "one", "3", "^a+$", "deep", "fixed", "unknown", "given", "inner", "x-note"} <= fixed


def test_each_text_is_told_with_its_field() -> None:
    paths = {path for _, _, path in seen(ASKED)}
    assert paths == {"instructions", "input", "tools[0].name", "tools[0].description", "tools[0].parameters"}
    nested = {"type": "function", "function": {"name": "lookup", "description": "Looks up", "parameters": {}}}
    chat = TurnRequest(model="auto", tools=parse_tools([nested], None, None, nested=True))
    assert {path for _, _, path in seen(chat)} == {"tools[0].function.name", "tools[0].function.description"}


def test_tools_that_the_model_is_not_shown_are_not_looked_at() -> None:
    assert not seen(TurnRequest(model="auto", tools=parse_tools([TOOL], "none", None, nested=False)))


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (
            parse_response_format({"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}),
            {"one", "fixed", "deep", "^a+$", "description"},
        ),
        (parse_structured_outputs({"choice": ["left", "right"]}), {"left", "right"}),
        (parse_structured_outputs({"regex": "[ab]+"}), {"[ab]+"}),
        (parse_structured_outputs({"grammar": 'start: "yes"'}), {'start: "yes"'}),
    ],
    ids=["json_schema", "choice", "regex", "grammar"],
)
def test_what_an_answer_has_to_say_is_seen(format: Any, expected: set[str]) -> None:
    """It comes out of the model and into the prompts of what continues it. Descriptions reach nobody."""
    texts = seen(TurnRequest(model="auto", format=format))
    assert {kind for _, kind, _ in texts} == {TextKind.FIXED}
    assert expected <= {text for text, _, _ in texts}
    assert not {"A title", "A name like a keyword"} & {text for text, _, _ in texts}


def test_an_output_goes_with_its_call_when_ids_are_replaced() -> None:
    changed = visited(ASKED, lambda text, kind, path: "other" if kind is TextKind.ID else text)
    assert changed.messages[1].calls[0].id == changed.messages[2].answers == "other"
    alone = TurnRequest(model="auto", messages=(Message("tool", "x", answers="of an earlier turn"),))
    assert visited(alone, lambda text, kind, path: "other" if kind is TextKind.ID else text) == alone


def test_a_number_that_is_replaced_becomes_a_string() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"properties": {"a": {"default": 42, "maximum": 42}}}}
    asked = TurnRequest(model="auto", tools=parse_tools([tool], None, None, nested=False))
    changed = visited(asked, lambda text, kind, path: "[n]" if (text, kind) == ("42", TextKind.PROSE) else text)
    assert changed.tools is not None
    assert changed.tools.tools[0].parameters == {"properties": {"a": {"default": "[n]", "maximum": 42}}}
