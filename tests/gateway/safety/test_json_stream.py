"""JSON stays JSON, says the same but for what was replaced, and hides nothing in escapes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.safety.json_stream import JsonFilter
from gateway.safety.stream import FilterRule, StreamFilter, TextFilter, filter_text
from tests.gateway.recognisers.samples import RECOGNISERS, cuts, texts

PLAIN = [FilterRule(name, RECOGNISERS[name], f"[{name}]") for name in ("api_key", "email", "card", "iban")]
QUOTED = [FilterRule(rule.name, rule.recogniser, json.dumps(rule.replacement)) for rule in PLAIN]


def filter() -> JsonFilter:
    def open(in_string: bool) -> StreamFilter:
        return TextFilter(PLAIN if in_string else QUOTED, lambda rule, text: None)

    return JsonFilter(open)


def streamed(chunks: list[str]) -> str:
    growing = filter()
    return "".join(map(growing.feed, chunks)) + growing.finish()


def expected(value: Any) -> Any:
    """The value with its texts filtered one by one."""
    match value:
        case str():
            return filter_text(value, PLAIN, lambda rule, text: None)[0]
        case list():
            return [expected(each) for each in value]
        case dict():
            return {expected(key): expected(each) for key, each in value.items()}
        case _:
            return value


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data(), value=values, ascii=st.booleans())
@settings(max_examples=300)
def test_each_text_of_a_document_is_filtered_however_it_is_spelled_and_cut(
    data: st.DataObject, value: Any, ascii: bool
) -> None:
    written = json.dumps(value, ensure_ascii=ascii)
    if not ascii:
        written = written.encode("utf-8", "replace").decode()
        value = json.loads(written)
    assert json.loads(streamed(data.draw(cuts(written)))) == expected(value)


@given(data=st.data(), text=texts)
def test_any_text_comes_out_the_same_however_it_is_cut(data: st.DataObject, text: str) -> None:
    """What is no JSON too."""
    assert streamed(data.draw(cuts(text))) == streamed([text])


def test_escapes_hide_nothing() -> None:
    written = r'{"to": "bob\u0040example.com", "face": "\ud83d\ude00"}'
    assert json.loads(streamed(list(written))) == {"to": "[email]", "face": "\N{GRINNING FACE}"}


def test_a_number_that_is_replaced_becomes_a_string() -> None:
    assert json.loads(streamed(list('{"card": 4111111111111111, "n": 3}'))) == {"card": "[card]", "n": 3}


def test_what_is_no_json_is_filtered_too() -> None:
    assert streamed(['it is "bob', "@example", '.com" or al@example.com']) == 'it is "[email]" or "[email]"'


@pytest.mark.parametrize("end", ['"bob@example.com', '"x\\', '"x\\u00', '"\\ud83d', '"\\ud83d\\'])
def test_a_document_that_breaks_off_loses_nothing_else(end: str) -> None:
    whole = streamed(list(f"[1, {end}"))
    assert whole == streamed([f"[1, {end}"])
    assert whole.startswith('[1, "')
