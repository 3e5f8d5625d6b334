"""One answer that may hold calls: what it is held to, and the events it becomes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gateway.protocol.response_create import parse_response_create
from gateway.protocol.stream import ArgumentsDelta, CallBegun, CallEnded, TextDelta, TokenLogprob, TurnEvent
from gateway.tools.answer import AnswerReader, constraint, shown_tokens
from gateway.tools.formats import FORMATS
from tests.gateway.tools.test_grammar import matcher, tokenizer

HERMES = FORMATS[0]
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


def request(**body: Any) -> Any:
    return parse_response_create({"input": "hi", **body})[0]


def nothing(name: str) -> None:
    """A tokenizer without special tokens."""


@pytest.mark.parametrize(
    ("body", "enforced"),
    [
        ({}, False),
        ({"tools": [TOOL]}, False),
        ({"tools": [TOOL], "tool_choice": "none"}, False),
        ({"tools": [TOOL], "tool_choice": "required"}, True),
        ({"tools": [TOOL], "parallel_tool_calls": False}, True),
        ({"tools": [{**TOOL, "strict": True}]}, True),
        ({"tools": [TOOL], "text": {"format": {"type": "json_object"}}}, True),
    ],
)
def test_what_is_held_to_a_grammar(body: Any, enforced: bool) -> None:
    """Only what free text could break."""
    assert (constraint(request(**body), HERMES, nothing) is not None) == enforced


def test_a_format_without_calls_is_its_own_grammar() -> None:
    """Also beside tools that may not be called."""
    format = {"format": {"type": "regex", "pattern": "a+"}}
    for body in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        held = constraint(request(text=format, **body), HERMES, nothing)
        assert held is not None
        assert (held.grammar.kind, held.grammar.source, held.param) == ("regex", "a+", "text.format.pattern")


@pytest.mark.parametrize(
    ("strict", "format_strict", "lenient"),
    [(None, None, True), (True, None, False), (None, True, False), (None, False, True)],
)
def test_strictness_of_any_part_is_that_of_the_whole(strict: Any, format_strict: Any, lenient: bool) -> None:
    """There is one grammar for all of it."""
    body: dict[str, Any] = {"tools": [{**TOOL, "strict": strict}], "tool_choice": "auto", "parallel_tool_calls": False}
    if format_strict is not None:
        format = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": format_strict}
        body["text"] = {"format": format}
    held = constraint(request(**body), HERMES, nothing)
    assert held is not None
    assert held.grammar.lenient == lenient


@pytest.mark.parametrize(
    ("format", "texts", "others"),
    [
        ({"type": "regex", "pattern": r"a/b\n?[/x]\\"}, ["a/b\nx\\", "a/b/\\"], ["a/b", "ab"]),
        (
            {"type": "choice", "choices": ["a/b", "c|d", "(e)", "f\ng", "\\"]},
            ["a/b", "c|d", "(e)", "f\ng", "\\"],
            ["c", "e"],
        ),
        ({"type": "json_object"}, ['{"a": [1]}'], ["[]", "1"]),
        (
            {"type": "json_schema", "name": "n", "schema": {"const": "a/b"}, "strict": True},
            ['"a/b"'],
            ['"a"'],
        ),
    ],
)
def test_a_format_beside_calls_means_what_it_means_alone(format: Any, texts: list[str], others: list[str]) -> None:
    """Slashes, line breaks and special characters included."""
    held = constraint(request(tools=[TOOL], text={"format": format}), HERMES, nothing)
    assert held is not None
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    for text in [*texts, *others, call]:
        step = matcher(held.grammar.source, special=False)
        tokens = tokenizer(False).encode(text, add_special_tokens=False).ids
        whole = step.try_consume_tokens(tokens) == len(tokens) and step.is_accepting()
        assert whole == (text not in others), text


def test_a_schema_is_blamed_by_its_own_path() -> None:
    """If it is the only one."""
    other = {**TOOL, "name": "g"}
    only = constraint(request(tools=[other, TOOL], tool_choice={"type": "function", "name": "f"}), HERMES, nothing)
    both = constraint(request(tools=[other, TOOL], tool_choice="required"), HERMES, nothing)
    assert only is not None and both is not None
    assert (only.param, both.param) == ("tools[1].parameters", "tools")


def test_tokens_that_are_shown() -> None:
    """The format's markers, where they are special tokens, and only while there are tools."""
    ids = {"<tool_call>": 7}
    assert shown_tokens(request(tools=[TOOL]), HERMES, ids.get) == {7}
    assert shown_tokens(request(tools=[TOOL], tool_choice="none"), HERMES, ids.get) == frozenset()
    assert shown_tokens(request(), HERMES, ids.get) == frozenset()


def read(reader: AnswerReader, *pieces: str) -> list[TurnEvent]:
    """One token a piece."""
    events = [event for token, piece in enumerate(pieces) for event in reader.read(piece, [token], ())]
    return [*events, *reader.finish()]


def test_an_answer_becomes_events() -> None:
    """Text, calls with ids, arguments; held-back tokens come with what is certain next."""
    ids = (f"call_{number}" for number in itertools.count())
    reader = AnswerReader(request(tools=[TOOL]), HERMES, lambda: next(ids))
    assert read(reader, "Hm", " <tool", '_call>{"name": "f", ', '"arguments": {"a"', ": 1}}</tool_call>", "Done") == [
        TextDelta("Hm", (0,)),
        CallBegun("call_0", "f"),
        ArgumentsDelta('{"a"', (1, 2, 3)),
        ArgumentsDelta(": 1}", (4,)),
        CallEnded(True),
        TextDelta("Done", (5,)),
    ]


def test_an_answer_in_json_is_no_call() -> None:
    """Where a format was asked for, only a marker tells a call from the answer; else an object of a call is one."""
    call = '{"name": "f", "arguments": {}}'
    reader = AnswerReader(request(tools=[TOOL]), HERMES, lambda: "call_1")
    assert read(reader, call)[0] == CallBegun("call_1", "f")
    reader = AnswerReader(request(tools=[TOOL], text={"format": {"type": "json_object"}}), HERMES, lambda: "never")
    assert read(reader, call) == [TextDelta(call, (0,))]


def test_without_tools_nothing_is_read_into_an_answer() -> None:
    """What looks like a call is text, with its tokens and in its pieces."""
    reader = AnswerReader(request(), HERMES, lambda: "never")
    call = '<tool_call>{"name": "f"}</tool_call>'
    assert read(reader, call, "") == [TextDelta(call, (0,)), TextDelta("", (1,))]


def test_log_probabilities_are_those_of_the_text() -> None:
    """However tokens and pieces of text lie to each other; those of calls are dropped."""
    pieces = ["Sure", ", h", "ere", ': <tool_call>{"name": "f", "argum', 'ents": {}}</tool_call>']
    tokens = [TokenLogprob(piece, tuple(piece.encode()), -0.5) for piece in pieces]
    reader = AnswerReader(request(tools=[TOOL]), HERMES, lambda: "call_1")
    events = [each for n, token in enumerate(tokens) for each in reader.read(token.token, (n,), (token,))]
    events += reader.finish()
    said = [event for event in events if isinstance(event, TextDelta)]
    assert "".join(event.text for event in said).strip() == "Sure, here:"
    assert [entry.token for event in said for entry in event.logprobs] == pieces[:4]
