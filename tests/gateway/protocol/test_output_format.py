"""What a client may want its answer to match, in three spellings; every refusal names its field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib._parsing._completions import type_to_response_format_param
from openai.lib._parsing._responses import type_to_text_format_param
from pydantic import BaseModel

from engine.wire import Grammar
from gateway.errors import InvalidRequest
from gateway.protocol.chat_completion_create import parse_chat_completion_create
from gateway.protocol.completion_create import parse_completion_create
from gateway.protocol.events import ResponseView
from gateway.protocol.log import TurnLog
from gateway.protocol.nesting import json_depth
from gateway.protocol.output_format import (
    MAX_CHOICES,
    MAX_DEPTH,
    MAX_GBNF_BYTES,
    MAX_SOURCE_BYTES,
    OutputFormat,
    one_format,
    parse_response_format,
    parse_structured_outputs,
    parse_text_config,
)
from gateway.protocol.response_create import parse_response_create

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GBNF = 'root ::= "a" [0-9]+'


class Answer(BaseModel):
    """What clients hand to the `openai` package's helpers."""

    city: str
    degrees: float


def nested(levels: int) -> dict[str, Any]:
    """A schema of so many levels."""
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("format", "grammar", "param"),
    [
        ({"type": "json_object"}, Grammar("json_object", ""), "type"),
        ({"type": "regex", "pattern": "[0-9]+"}, Grammar("regex", "[0-9]+"), "pattern"),
        ({"type": "choice", "choices": ["yes", "no"]}, Grammar("choice", '["yes","no"]'), "choices"),
        (
            {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'},
            Grammar("lark", 'start: "a"'),
            "definition",
        ),
        ({"type": "grammar", "definition": 'start: "a"'}, Grammar("lark", 'start: "a"'), "definition"),
        ({"type": "grammar", "syntax": "regex", "definition": "a+"}, Grammar("regex", "a+"), "definition"),
    ],
)
def test_both_apis_spell_these_alike(format: dict[str, Any], grammar: Grammar, param: str) -> None:
    """`text.format` and `response_format`."""
    assert parse_text_config({"format": format}) == OutputFormat(grammar, f"text.format.{param}", format)
    assert parse_response_format(format) == OutputFormat(grammar, f"response_format.{param}", format)


def test_a_schema_lies_flat_or_nested() -> None:
    """As OpenAI's two APIs have it; both carry the same grammar, and a response repeats the flat one."""
    schema = {"name": "answer", "schema": SCHEMA, "strict": True, "description": "an answer"}
    flat = parse_text_config({"format": {"type": "json_schema", **schema}})
    nested = parse_response_format({"type": "json_schema", "json_schema": schema})
    assert flat is not None and nested is not None
    assert flat.grammar == nested.grammar
    assert (flat.grammar.kind, json.loads(flat.grammar.source)) == ("json_schema", SCHEMA)
    assert (flat.param, nested.param) == ("text.format.schema", "response_format.json_schema.schema")
    assert flat.shown == nested.shown == {"type": "json_schema", **schema}


@pytest.mark.parametrize(("strict", "lenient"), [(None, True), (False, True), (True, False)])
def test_a_schema_constrains_with_and_without_strict(strict: bool | None, lenient: bool) -> None:
    """What strictness decides is whether a keyword that cannot be enforced is an error."""
    format = parse_text_config({"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": strict}})
    assert format is not None
    assert (format.grammar.kind, format.grammar.lenient) == ("json_schema", lenient)


def test_what_the_openai_package_makes_of_a_pydantic_model() -> None:
    """For `responses.parse` and `chat.completions.parse`."""
    expected: Any = type_to_text_format_param(Answer)
    flat = parse_text_config({"format": expected})
    nested = parse_response_format(type_to_response_format_param(Answer))
    assert flat is not None and nested is not None
    assert json.loads(flat.grammar.source) == json.loads(nested.grammar.source) == expected["schema"]


@pytest.mark.parametrize("value", [None, {}, {"format": None}, {"format": {"type": "text"}}, {"verbosity": "medium"}])
def test_free_text(value: Any) -> None:
    """Whatever asks for nothing."""
    assert parse_text_config(value) is None


@pytest.mark.parametrize(
    ("value", "grammar"),
    [
        ({"json": SCHEMA}, Grammar("json_schema", json.dumps(SCHEMA, separators=(",", ":")), True)),
        ({"json": json.dumps(SCHEMA)}, Grammar("json_schema", json.dumps(SCHEMA, separators=(",", ":")), True)),
        ({"json_object": True}, Grammar("json_object", "")),
        ({"regex": "a+", "json": None}, Grammar("regex", "a+")),
        ({"choice": ["a"]}, Grammar("choice", '["a"]')),
        ({"grammar": 'start: "a"'}, Grammar("lark", 'start: "a"')),
        ({"grammar": GBNF}, Grammar("lark", '%llguidance {}\n\nstart: "a" /[0-9]/+\n')),
    ],
)
def test_vllms_spelling(value: dict[str, Any], grammar: Grammar) -> None:
    """`structured_outputs`; the one set names the field."""
    format = parse_structured_outputs(value)
    assert format is not None
    assert format.grammar == grammar
    assert format.param.partition(".")[2] in value


def test_gbnf_becomes_lark() -> None:
    """Translated here: engines know one notation."""
    format = parse_response_format({"type": "grammar", "syntax": "gbnf", "definition": GBNF})
    assert format is not None
    assert (format.grammar.kind, "start:" in format.grammar.source) == ("lark", True)


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [
        ("json", "text", "invalid_value"),
        ({"fmt": {}}, "text.fmt", "unknown_parameter"),
        ({"verbosity": "endless"}, "text.verbosity", "invalid_value"),
        ({"format": "json"}, "text.format", "invalid_value"),
        ({"format": {}}, "text.format.type", "missing_required_parameter"),
        ({"format": {"type": "xml"}}, "text.format.type", "invalid_value"),
        ({"format": {"type": ["text"]}}, "text.format.type", "invalid_value"),
        ({"format": {"type": "json_object", "schema": {}}}, "text.format.schema", "unknown_parameter"),
        ({"format": {"type": "json_schema", "schema": SCHEMA}}, "text.format.name", "missing_required_parameter"),
        ({"format": {"type": "json_schema", "name": "a b", "schema": SCHEMA}}, "text.format.name", "invalid_value"),
        ({"format": {"type": "json_schema", "name": "n" * 65, "schema": {}}}, "text.format.name", "invalid_value"),
        ({"format": {"type": "json_schema", "name": "n"}}, "text.format.schema", "missing_required_parameter"),
        ({"format": {"type": "json_schema", "name": "n", "schema": "{}"}}, "text.format.schema", "invalid_value"),
        ({"format": {"type": "json_schema", "name": "n", "schema": True}}, "text.format.schema", "invalid_value"),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": nested(MAX_DEPTH + 1)}},
            "text.format.schema",
            "invalid_value",
        ),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": {"title": "x" * MAX_SOURCE_BYTES}}},
            "text.format.schema",
            "invalid_value",
        ),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": "yes"}},
            "text.format.strict",
            "invalid_value",
        ),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": {}, "description": 5}},
            "text.format.description",
            "invalid_value",
        ),
        ({"format": {"type": "regex"}}, "text.format.pattern", "missing_required_parameter"),
        ({"format": {"type": "regex", "pattern": ""}}, "text.format.pattern", "invalid_value"),
        ({"format": {"type": "regex", "pattern": 5}}, "text.format.pattern", "invalid_value"),
        (
            {"format": {"type": "regex", "pattern": "é" * (MAX_SOURCE_BYTES // 2 + 1)}},
            "text.format.pattern",
            "invalid_value",
        ),
        ({"format": {"type": "choice"}}, "text.format.choices", "missing_required_parameter"),
        ({"format": {"type": "choice", "choices": []}}, "text.format.choices", "invalid_value"),
        ({"format": {"type": "choice", "choices": ["a", 5]}}, "text.format.choices", "invalid_value"),
        ({"format": {"type": "choice", "choices": ["a", ""]}}, "text.format.choices", "invalid_value"),
        ({"format": {"type": "choice", "choices": "ab"}}, "text.format.choices", "invalid_value"),
        ({"format": {"type": "choice", "choices": ["a"] * (MAX_CHOICES + 1)}}, "text.format.choices", "invalid_value"),
        ({"format": {"type": "grammar"}}, "text.format.definition", "missing_required_parameter"),
        (
            {"format": {"type": "grammar", "syntax": "yacc", "definition": "x"}},
            "text.format.syntax",
            "invalid_value",
        ),
        (
            {"format": {"type": "grammar", "syntax": "gbnf", "definition": "("}},
            "text.format.definition",
            "invalid_value",
        ),
        (
            {"format": {"type": "grammar", "syntax": "gbnf", "definition": "root ::= " + "(" * 5000}},
            "text.format.definition",
            "invalid_value",
        ),
        (
            {"format": {"type": "grammar", "syntax": "gbnf", "definition": "#" * (MAX_GBNF_BYTES + 1)}},
            "text.format.definition",
            "invalid_value",
        ),
    ],
)
def test_a_responses_format_is_refused_by_field(value: Any, param: str, code: str) -> None:
    """With the message naming it too."""
    with pytest.raises(InvalidRequest) as caught:
        parse_text_config(value)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("json_object", "response_format"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "", "schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "name": "n", "schema": {}}, "response_format.name"),
    ],
)
def test_a_chat_format_is_refused_by_field(value: Any, param: str) -> None:
    """Nested as it is there."""
    with pytest.raises(InvalidRequest) as caught:
        parse_response_format(value)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("json", "structured_outputs"),
        ({}, "structured_outputs"),
        ({"regex": "a", "choice": ["a"]}, "structured_outputs"),
        ({"structural_tag": "x"}, "structured_outputs.structural_tag"),
        ({"json": "{"}, "structured_outputs.json"),
        ({"json": 5}, "structured_outputs.json"),
        ({"grammar": "::="}, "structured_outputs.grammar"),
        ({"choice": {}}, "structured_outputs.choice"),
    ],
)
def test_vllms_format_is_refused_by_field(value: Any, param: str) -> None:
    """The same checks under other names."""
    with pytest.raises(InvalidRequest) as caught:
        parse_structured_outputs(value)
    assert caught.value.param == param


def test_a_schema_may_stand_beside_json_object() -> None:
    """As llama.cpp and Together have it in `response_format`."""
    schema = {"type": "object"}
    format = parse_response_format({"type": "json_object", "schema": schema})
    assert format is not None
    assert (format.grammar, format.param) == (
        Grammar("json_schema", '{"type":"object"}', lenient=True),
        "response_format.schema",
    )
    assert parse_response_format({"type": "json_object", "schema": None}) == parse_response_format(
        {"type": "json_object"}
    )
    with pytest.raises(InvalidRequest) as caught:
        parse_response_format({"type": "json_object", "schema": []})
    assert caught.value.param == "response_format.schema"


def test_one_request_has_one_format() -> None:
    """Two of them would contradict each other."""
    format = parse_response_format({"type": "json_object"})
    assert one_format(None, format) is format
    assert one_format(None, None) is None
    with pytest.raises(InvalidRequest) as caught:
        one_format(format, parse_structured_outputs({"regex": "a"}))
    assert caught.value.param == "structured_outputs"


def test_each_endpoint_passes_its_format_on() -> None:
    """From the body to the turn, and from the turn to what a response repeats."""
    regex = Grammar("regex", "a+")
    spelled = {"type": "regex", "pattern": "a+"}
    response, _ = parse_response_create({"input": "hi", "text": {"format": spelled}})
    chat = parse_chat_completion_create({"messages": [{"role": "user", "content": "hi"}], "response_format": spelled})
    also = parse_chat_completion_create(
        {"messages": [{"role": "user", "content": "hi"}], "structured_outputs": {"regex": "a+"}}
    )
    raw = parse_completion_create({"prompt": "hi", "structured_outputs": {"regex": "a+"}})
    for request in (response, *chat.turns, *also.turns, *raw.turns):
        assert request.format is not None
        assert request.format.grammar == regex
    view = ResponseView("resp_1", 0, response, TurnLog())
    assert view.response()["text"] == {"format": spelled}


@given(st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner)))
def test_depth_counts_containers(value: Any) -> None:
    """The same as by recursion."""

    def depth(item: Any) -> int:
        children = list(item.values()) if isinstance(item, dict) else item if isinstance(item, list) else None
        return 0 if children is None else 1 + max(map(depth, children), default=0)

    assert json_depth(value) == depth(value)


@pytest.mark.parametrize(("text", "holds"), [('{"a": 1}', True), ('{"a": ', False), ("", False), ("[" * 10_000, False)])
def test_an_answer_in_json_has_to_be_json(text: str, holds: bool) -> None:
    """What does not parse breaks the format; other formats cannot be told from here."""
    json_format, regex = parse_response_format({"type": "json_object"}), parse_structured_outputs({"regex": "a"})
    assert json_format is not None and regex is not None
    assert json_format.holds(text) is holds
    assert regex.holds(text)
