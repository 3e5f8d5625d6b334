"""How the events of servers that take messages become the parts of an answer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client.conversation import ArgumentsPart, CallEndPart, CallPart, TextPart
from gateway.upstreams.dialects import MESSAGE_DIALECTS
from gateway.upstreams.messages.anthropic import MessagesEvent
from gateway.upstreams.messages.dialect import CallFragment, MessageChunk, ServerUsage
from gateway.upstreams.messages.openai import ChatEvent
from gateway.upstreams.messages.reading import MessageReader, UnofferedCall
from gateway.upstreams.pages import UNREADABLE


def chunk(event: object) -> MessageChunk:
    return msgspec.json.decode(json.dumps(event), type=ChatEvent).chunk()


def said(**delta: Any) -> MessageChunk:
    return chunk({"choices": [{"index": 0, "delta": delta}]})


def scored(tops: list[float], **delta: Any) -> MessageChunk:
    """A token's chunk with log-probabilities of others beside its own, which is -0.5."""
    others = [{"token": f"t{number}", "logprob": value} for number, value in enumerate(tops)]
    entry = {"token": "a", "logprob": -0.5, "top_logprobs": others}
    return chunk({"choices": [{"delta": delta, "logprobs": {"content": [entry]}}]})


def call(name: str | None, arguments: str, index: int | None = 0) -> MessageChunk:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return said(tool_calls=[{"id": "1", "function": function, **({} if index is None else {"index": index})}])


def parts(*chunks: MessageChunk, logprobs: int | None = None) -> list[object]:
    reader = MessageReader(("now", "then"), logprobs)
    found = [part for each in chunks for part in reader.read(each).parts]
    end = reader.end()
    return [*found, *(end.parts if end else ())]


STOP = MessageChunk(finish="stop")


def test_text_and_refusals_are_text() -> None:
    assert parts(said(role="assistant", content=None), said(content="Hi"), said(refusal=" no"), STOP) == [
        TextPart("Hi", []),
        TextPart(" no", []),
    ]


def test_a_call_comes_in_pieces() -> None:
    chunks = [call("now", ""), call(None, '{"zone"'), call(None, ':"UTC"}'), STOP]
    assert parts(*chunks) == [
        CallPart("now"),
        ArgumentsPart('{"zone"'),
        ArgumentsPart(':"UTC"}'),
        CallEndPart(complete=True),
    ]


@pytest.mark.parametrize("second", [1, 0, None])
def test_calls_follow_each_other_also_where_a_server_does_not_number_them(second: int | None) -> None:
    chunks = [call("now", "{}", 0), call("then", '{"a":1}', second), STOP]
    assert [part for part in parts(*chunks) if isinstance(part, CallPart)] == [CallPart("now"), CallPart("then")]
    assert parts(*chunks)[-1] == CallEndPart(complete=True)


def test_a_name_that_is_repeated_begins_no_other_call_before_the_first_is_whole() -> None:
    chunks = [call("now", '{"zone"'), call("now", ':"UTC"}'), call("now", "{}"), STOP]
    assert parts(*chunks) == [
        CallPart("now"),
        ArgumentsPart('{"zone"'),
        ArgumentsPart(':"UTC"}'),
        CallEndPart(complete=True),
        CallPart("now"),
        ArgumentsPart("{}"),
        CallEndPart(complete=True),
    ]


def test_text_after_a_call_ends_it() -> None:
    assert parts(call("now", "{}"), said(content="done"), STOP)[2:] == [
        CallEndPart(complete=True),
        TextPart("done", []),
    ]


def test_a_call_without_arguments_has_none_to_give() -> None:
    assert parts(call("now", ""), STOP) == [CallPart("now"), ArgumentsPart("{}"), CallEndPart(complete=True)]


def test_a_call_that_is_cut_off_is_not_complete() -> None:
    assert parts(call("now", '{"zo'), MessageChunk(finish="length"))[-1] == CallEndPart(complete=False)


def test_a_call_of_what_was_not_offered_is_none() -> None:
    with pytest.raises(UnofferedCall):
        parts(call("destroy", "{}"))


def test_arguments_without_a_call_make_no_sense() -> None:
    with pytest.raises(ValueError, match="has not begun"):
        parts(call(None, "{}"))


@pytest.mark.parametrize(
    ("reason", "finish", "filtered"),
    [
        ("stop", "stop", False),
        ("eos_token", "stop", False),
        ("tool_calls", "stop", False),
        ("length", "length", False),
        ("content_filter", "stop", True),
        ("bored", "error", False),
    ],
)
def test_reasons_of_ends(reason: str, finish: str, filtered: bool) -> None:
    reader = MessageReader(())
    assert reader.end() is None
    reader.read(chunk({"choices": [{"delta": {}, "finish_reason": reason}]}))
    end = reader.end()
    assert end is not None
    assert (end.finish, end.filtered) == (finish, filtered)


def test_the_server_s_counts_replace_the_estimate() -> None:
    reader = MessageReader(())
    for word in ("Once", " upon", " a", " time"):
        reader.read(said(content=word))
    assert reader.tokens == 4
    reader.read(said(content="x" * 400))  # one event, but surely more than one token
    assert reader.tokens > 50
    assert reader.usage == ServerUsage()
    usage = {"prompt_tokens": 9, "completion_tokens": 70, "prompt_tokens_details": {"cached_tokens": 8}}
    reader.read(chunk({"choices": [], "usage": usage}))
    assert reader.usage == ServerUsage(9, 8, 70)


@pytest.mark.parametrize("count", [-1, 2**40])
def test_counts_that_make_no_sense_are_refused(count: int) -> None:
    with pytest.raises(msgspec.ValidationError, match="completion_tokens"):
        chunk({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": count}})
    event = json.dumps({"type": "message_delta", "usage": {"output_tokens": count}})
    with pytest.raises(msgspec.ValidationError, match="output_tokens"):
        msgspec.json.decode(event, type=MessagesEvent)


def test_reasoning_is_counted_and_is_no_part_of_the_answer() -> None:
    reader = MessageReader(())
    for each in (said(reasoning_content="hm"), said(reasoning="so")):
        assert reader.read(each).parts == []
    assert reader.tokens == 2


def test_whatever_is_shown_of_an_answer_counts_as_its_beginning() -> None:
    """Also the name of a function, and tokens without text: an answer that has begun is never asked for elsewhere."""
    for first in (call("now", ""), scored([], content="")):
        output = MessageReader({"now"}, logprobs=0).read(first)
        assert output.parts and output.tokens == 1


def test_log_probabilities_come_with_the_bytes_of_tokens_where_the_server_tells_them() -> None:
    entry = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1.0, "bytes": [98]}]}
    found = chunk({"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [entry]}}]})
    (score,) = found.logprobs
    assert (score.token, score.bytes, score.logprob) == ("a", (97,), -0.5)
    assert [(each.token, each.bytes) for each in score.top] == [("b", (98,))]


@pytest.mark.parametrize(
    ("asked", "told"), [(None, None), (0, []), (1, ["t1"]), (2, ["t1", "t2"]), (5, ["t1", "t2", "t0"])]
)
def test_of_log_probabilities_only_those_that_were_asked_for_are_passed_on(
    asked: int | None, told: list[str] | None
) -> None:
    """The likeliest tokens first. All of them count as tokens of the answer."""
    found = [scored([-3.0, -1.0, -2.0], content=""), scored([-3.0, -1.0, -2.0], content="a")]
    texts = [part for part in parts(*found, logprobs=asked) if isinstance(part, TextPart)]
    assert [part.text for part in texts] == (["a"] if told is None else ["", "a"])
    for part in texts:
        assert [[each.token for each in score.top] for score in part.logprobs] == ([] if told is None else [told])
    reader = MessageReader((), asked)
    assert [reader.read(each).tokens for each in found] == [1, 2]


def test_log_probabilities_of_what_is_no_text_are_not_those_of_the_answer() -> None:
    """Those of a call's arguments do not end it."""
    function = [{"index": 0, "id": "1", "function": {"name": "now", "arguments": ""}}]
    more = [{"index": 0, "function": {"arguments": '{"a":1}'}}]
    chunks = [scored([], reasoning="hm"), scored([], tool_calls=function), scored([], tool_calls=more), STOP]
    assert parts(*chunks, logprobs=0) == [CallPart("now"), ArgumentsPart('{"a":1}'), CallEndPart(complete=True)]


@pytest.mark.parametrize(
    ("error", "message", "status"),
    [
        ({"message": "busy", "code": 429}, "busy", 429),
        ({"message": "too long", "http_status_code": 422}, "too long", 422),
        ({"message": "no", "code": "server_error"}, "no", 0),
        ("it broke", "it broke", 0),
    ],
)
def test_errors_amid_a_stream(error: object, message: str, status: int) -> None:
    found = chunk({"error": error}).error
    assert found is not None
    assert (found.message, found.status) == (message, status)


NAMES = st.sampled_from(
    ["choices", "delta", "content", "tool_calls", "function", "index", "usage", "error", "logprobs"]
)


def _json(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=4) | st.dictionaries(NAMES, values, max_size=4)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), _json, max_leaves=20))
def test_no_event_breaks_the_reader(event: object) -> None:
    reader = MessageReader({"now"})
    try:
        output = reader.read(chunk(event))
    except (*UNREADABLE, UnofferedCall):
        return
    assert output.tokens or not output.parts
    reader.end()


@given(st.lists(st.text(max_size=8), max_size=6), st.integers(0, 3))
def test_arguments_arrive_whole_however_they_are_cut(pieces: list[str], more: int) -> None:
    fragments = [MessageChunk(calls=[CallFragment(0, None, piece)]) for piece in pieces]
    chunks = [MessageChunk(calls=[CallFragment(0, "now")]), *fragments, *[MessageChunk()] * more, STOP]
    found = "".join(part.text for part in parts(*chunks) if isinstance(part, ArgumentsPart))
    assert found == ("".join(pieces) or "{}")


def test_events_of_anthropic() -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2, "output_tokens": 1}
    tool = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}}
    events = [
        {"type": "message_start", "message": {"id": "msg_1", "usage": usage}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Let me see."}},
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2, "content_block": tool},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ""}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 40}},
        {"type": "message_stop"},
    ]
    chunks = [msgspec.json.decode(json.dumps(event), type=MessagesEvent).chunk() for event in events]
    assert parts(*chunks) == [
        TextPart("Let me see.", []),
        CallPart("now"),
        ArgumentsPart("{}"),
        CallEndPart(complete=True),
    ]
    reader = MessageReader({"now"})
    for each in chunks:
        reader.read(each)
    assert reader.usage == ServerUsage(10, 3, 40)


@pytest.mark.parametrize(("kind", "status"), [("overloaded_error", 529), ("rate_limit_error", 429), ("other", 0)])
def test_errors_of_anthropic_amid_a_stream(kind: str, status: int) -> None:
    event = {"type": "error", "error": {"type": kind, "message": "no"}}
    found = msgspec.json.decode(json.dumps(event), type=MessagesEvent).chunk().error
    assert found is not None
    assert (found.message, found.status) == ("no", status)


@pytest.mark.parametrize(
    ("dialect", "name", "listed"),
    [
        ("openai", "m", {"m": True, "m:latest": False}),
        ("ollama", "m", {"m": True, "m:latest": True, "m:7b": False}),
        ("anthropic", "m-4", {"m-4": True, "m-4-20260101": True, "m-4-mini": False}),
    ],
)
def test_names_under_which_servers_list_models(dialect: str, name: str, listed: dict[str, bool]) -> None:
    assert {each: MESSAGE_DIALECTS[dialect].is_listed(name, each) for each in listed} == listed
