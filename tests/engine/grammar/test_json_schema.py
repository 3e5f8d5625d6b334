"""JSON schemas: what is refused, and that nothing which is taken lets through what it forbids."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.grammar.source import GrammarLimits, to_llguidance
from engine.request import RequestError
from engine.wire import Grammar
from tests.amounts import examples
from tests.engine.grammar import suite
from tests.engine.grammar.schemas import SCHEMAS, Schema, accepts, compiled, wander


def in_lark(schema: Any) -> Grammar:
    return Grammar("lark", f'start: "<" body ">"\nbody: %json {json.dumps(schema)}')


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([], "an object, true or false"),
        ({"x-guidance": {"lenient": True}}, "x-guidance: not supported"),
        ({"multipleOf": 10_001}, "#/multipleOf: more than 10000"),
        ({"items": {"multipleOf": 0.12345}}, "#/items/multipleOf: more than 10000"),
        ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}, "multipleOf: the multiples have none in common"),
        ({"const": 2**53 + 1}, "#/const: 9007199254740993 cannot be told"),
        ({"enum": [[{"a": 2**53 + 1}]]}, "#/enum/0/0/a: 9007199254740993 cannot be told"),
        ({"maximum": 2**64 - 1}, "#/maximum: 18446744073709551615 cannot be told"),
        ({"const": "a\0b"}, "#/const: control characters"),
        ({"enum": [{"\x7f": 1}]}, "#/enum: control characters"),
        ({"properties": {"\x01": {}}}, "#/properties: control characters"),
        ({"required": ["\x01"]}, "#/required: control characters"),
        ({"pattern": "^a\\x00b$"}, "asks for a control character"),
        ({"pattern": "a[\\x{1f}]"}, "asks for a control character"),
        ({"pattern": "a|\x00"}, "asks for a control character"),
        ({"patternProperties": {"\\u0001": {}}}, "asks for a control character"),
        ({"minProperties": 2}, "#/minProperties: at most one more"),
    ],
    ids=repr,
)
def test_what_would_be_enforced_wrongly_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        compiled(schema)
    assert message in str(caught.value)
    assert caught.value.kind == "invalid"
    if isinstance(schema, dict) and "x-guidance" not in schema:
        with pytest.raises(RequestError) as caught:
            to_llguidance(in_lark(schema), GrammarLimits())
        assert message in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"multipleOf": 10_000},
        {"multipleOf": 0.01},
        {"properties": {"a": {"multipleOf": 9973}, "b": {"multipleOf": 9967}}},
        {"type": "integer", "maximum": 2**63 - 1},
        {"const": 2.0**60},
        {"const": "a\tb\n"},
        {"pattern": "^[^\\x00-\\x1f]+$"},
        {"pattern": "^\\x41\\t\\\\x00$"},
        {"required": ["a", "b"], "minProperties": 3},
        {"properties": {"pattern": {}, "const": {}, "enum": {}, "minProperties": {}, "multipleOf": {}, "required": {}}},
        True,
    ],
    ids=repr,
)
def test_what_is_enforced_rightly_is_taken(schema: Any) -> None:
    assert not compiled(schema).is_error()


@pytest.mark.parametrize("depth", [70, 10_000])
def test_a_schema_that_is_nested_too_deep_is_refused(depth: int) -> None:
    for source in ('{"items":' * depth + "{}" + "}" * depth, '{"const":' + "[" * depth + "]" * depth + "}"):
        with pytest.raises(RequestError, match=r"nested (more than 64 levels|too) deep"):
            to_llguidance(Grammar("json_schema", source), GrammarLimits())


def test_a_schema_of_too_many_values_is_refused() -> None:
    with pytest.raises(RequestError, match="more than 20000 values"):
        compiled({"enum": list(range(20_001))})


@pytest.mark.parametrize("source", ["", "{", '{"a": NaN}', '{"maximum": 1e400}', '{"const": "\\ud800"}', "'a'"])
def test_what_is_no_json_is_refused(source: str) -> None:
    with pytest.raises(RequestError, match="not valid JSON"):
        to_llguidance(Grammar("json_schema", source), GrammarLimits())


def test_whitespace_is_bounded_everywhere() -> None:
    matcher = compiled({"type": "array", "items": {"type": "integer"}})
    assert accepts(matcher, "[" + 20 * "\n" + "1 ,\t2 ]")
    for text in ("[" + 21 * " " + "]", "[1" + 21 * "\n" + "]", " []", "[] ", "[" + 10 * " " + 11 * "\n" + "]"):
        assert not accepts(matcher, text)


def test_a_name_spelled_with_escapes_is_no_other_name() -> None:
    assert not accepts(compiled({"properties": {"foo": {"type": "integer"}}}), '{"\\u0066oo":"a"}')


def test_a_lenient_schema_is_enforced_as_far_as_it_can_be() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    source = to_llguidance(Grammar("json_schema", json.dumps(schema), lenient=True), GrammarLimits())
    strict = to_llguidance(Grammar("json_schema", json.dumps(schema)), GrammarLimits())
    assert source != strict
    assert '\\"lenient\\": true' in source


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
@given(SCHEMAS, st.integers(0, 2**32))
def test_no_document_that_a_schema_forbids_gets_through(schema: Schema, seed: int) -> None:
    try:
        start = compiled(schema)
    except RequestError:
        assume(False)
    assume(not start.is_error())
    assert not start.get_grammar_warnings()
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    generator = random.Random(seed)
    for _ in range(5):
        text = wander(start, generator)
        if text is not None and "Infinity" not in json.dumps(document := json.loads(text)):
            validator.validate(document)


class TestSuite:
    @pytest.mark.parametrize("name", suite.files())
    def test_nothing_invalid_gets_through_but_what_is_known_to(self, name: str) -> None:
        assert {(name, test) for test in suite.outcome(name).under} == {key for key in suite.UNDER if key[0] == name}

    def test_the_page_tells_what_is_supported(self) -> None:
        assert suite.in_page() == suite.table(), "run: python -m tests.engine.grammar.suite"
