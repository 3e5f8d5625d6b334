"""From clients' grammars to llguidance's: every text of the language and no other."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from engine.grammar.source import GrammarLimits, may_ignore, to_llguidance
from engine.request import RequestError
from engine.wire import Grammar
from tests.engine.grammar.schemas import BYTES, accepts


def matcher(grammar: Grammar) -> LLMatcher:
    made = LLMatcher(BYTES, to_llguidance(grammar, GrammarLimits()), log_level=0)
    assert not made.is_error(), made.get_error()
    return made


@given(st.lists(st.text(max_size=6), min_size=1, max_size=6), st.text(max_size=3))
def test_a_choice_is_any_of_its_texts_and_nothing_else(choices: list[str], other: str) -> None:
    start = matcher(Grammar("choice", json.dumps(choices)))
    assert all(accepts(start, choice) for choice in choices)
    for text in [other, *(choice + "x" for choice in choices), *(choice[:-1] for choice in choices)]:
        assert accepts(start, text) == (text in choices)


def test_a_choice_may_have_thousands_of_texts() -> None:
    start = matcher(Grammar("choice", json.dumps([f"item {index}" for index in range(5000)])))
    assert accepts(start, "item 4999")
    assert not accepts(start, "item 5000")


@pytest.mark.parametrize("source", ["[]", "{}", '"a"', '["a", 1]', "[", '["\\ud800"]'])
def test_what_is_no_list_of_strings_is_no_choice(source: str) -> None:
    with pytest.raises(RequestError, match="grammar: "):
        to_llguidance(Grammar("choice", source), GrammarLimits())


@pytest.mark.parametrize(
    "expression",
    ["a/b", "a\nb", "(?i)ab", "a|ab", "a{2,3}", "[^a]b?", r"\(\)", "x*", "", r"\d\w\s", "a.c", "(?s)a.c", "^ab$", "ä+"],
)
def test_a_regex_is_matched_from_end_to_end_as_python_does(expression: str) -> None:
    start = matcher(Grammar("regex", expression))
    for text in [
        "",
        "a",
        "ab",
        "abb",
        "aa",
        "aaa",
        "aaaa",
        "a/b",
        "a\nb",
        "AB",
        "b",
        "()",
        "xx",
        "1a ",
        "a\nc",
        "abc",
        "ää",
    ]:
        assert accepts(start, text) == (re.fullmatch(expression, text) is not None), text


def test_a_lark_grammar_is_taken_as_it_is() -> None:
    start = matcher(Grammar("lark", 'start: "a" b\n\nb: "b" b | "c"\n'))
    assert accepts(start, "abbc")
    assert not accepts(start, "ab")


def test_json_schemas_in_a_lark_grammar_keep_to_the_rules_of_others() -> None:
    source = 'start: %json {"type": "integer"} sep %json\n  {"properties": {"a": {"const": "%json {"}}}\nsep: ";"'
    start = matcher(Grammar("lark", source))
    assert accepts(start, '1;{"a":"%json {"}')
    assert accepts(start, "1;{" + 20 * " " + "}")
    assert not accepts(start, "1;{" + 21 * " " + "}")
    assert not accepts(start, '1;{"\\u0061":1}')


def test_half_a_character_in_a_lark_grammar_is_refused_in_words_that_can_be_sent() -> None:
    source = r'start: %json {"properties": {"\ud800": {"maximum": 9007199254740993}}}'
    with pytest.raises(RequestError, match="half a character") as refused:
        to_llguidance(Grammar("lark", source), GrammarLimits())
    assert str(refused.value).encode()


def test_a_schema_in_a_lark_grammar_may_be_compact() -> None:
    options = '{"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}'
    start = matcher(Grammar("lark", f'start: %json {{"items": {{"type": "null"}}, "x-guidance": {options}}}'))
    assert accepts(start, "[null, null]")
    assert not accepts(start, "[null,null]")
    assert not accepts(start, '{"\\u0061": 1}')
    options = '{"whitespace_flexible": true, "item_separator": ";"}'
    start = matcher(Grammar("lark", f'start: %json {{"items": {{"type": "null"}}, "x-guidance": {options}}}'))
    assert accepts(start, "[null ;null]")
    assert not accepts(start, "[null;" + 21 * " " + "null]")


def test_a_schema_in_a_lark_grammar_may_be_lenient() -> None:
    lenient = Grammar("lark", 'start: %json {"type": "array", "uniqueItems": true, "x-guidance": {"lenient": true}}')
    assert may_ignore(lenient)
    assert accepts(matcher(lenient), "[1, 1]")
    strict = Grammar("lark", 'start: %json {"type": "array", "uniqueItems": true}', lenient=True)
    assert LLMatcher(BYTES, to_llguidance(strict, GrammarLimits()), log_level=0).is_error()


@pytest.mark.parametrize("options", ["true", '{"coerce_one_of": true}', '{"whitespace_pattern": "x"}'])
def test_other_options_of_a_schema_are_refused(options: str) -> None:
    with pytest.raises(RequestError, match="x-guidance: only"):
        to_llguidance(Grammar("lark", f'start: %json {{"x-guidance": {options}}}'), GrammarLimits())


@pytest.mark.parametrize("attribute", ["temperature=0.5", "max_tokens=3", "lazy, stop=/x/"])
def test_what_would_be_ignored_in_a_lark_grammar_is_refused(attribute: str) -> None:
    with pytest.raises(RequestError, match=r"(temperature|max_tokens|stop): not supported"):
        to_llguidance(Grammar("lark", f"start: a\na[{attribute}]: /b+/"), GrammarLimits())


def test_llguidance_s_own_format_is_no_lark_grammar() -> None:
    made = LLMatcher(BYTES, to_llguidance(Grammar("lark", '{"grammars": []}'), GrammarLimits()), log_level=0)
    assert made.is_error()
