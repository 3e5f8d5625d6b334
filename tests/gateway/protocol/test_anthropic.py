"""Anthropic's requests as turns, and turns as Anthropic's messages and events, which its own types validate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_type_hints

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from anthropic.types.shared import ErrorResponse
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields
from pydantic import BaseModel, TypeAdapter

from gateway.errors import ApiError, ContextLengthExceeded, InvalidRequest
from gateway.protocol.anthropic.answers import MessageStream, message
from gateway.protocol.anthropic.errors import anthropic_error, anthropic_status
from gateway.protocol.anthropic.requests import MessageCreate, parse_message_count, parse_message_create
from gateway.protocol.log import TurnLog
from gateway.protocol.requests import Message, ToolCall, TurnRequest, only_known
from gateway.protocol.stream import ArgumentsDelta, CallBegun, CallEnded, Finished, Routed, TextDelta, TokenUsage

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
BODY: dict[str, Any] = {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
CALLING = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
TOOL: dict[str, Any] = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}
ROUTED = Routed(
    tier="small", model="m", replica="r", reason="requested", complexity=None, cache_reason="new", input_tokens=7
)


def asked(**fields: Any) -> TurnRequest:
    (turn,) = parse_message_create({**BODY, **fields}).turns
    return turn


def check(value: BaseModel) -> None:
    """Check that a model of the package holds nothing that its types do not name."""
    assert not value.model_extra, value
    for name in type(value).model_fields:
        child = getattr(value, name)
        for each in child if isinstance(child, list) else [child]:
            if isinstance(each, BaseModel):
                check(each)


class TestRequests:
    def test_every_parameter_of_anthropics_is_known(self) -> None:
        """Served or refused by name, but never an unknown field; two are headers."""
        known = {field.encode_name for field in fields(MessageCreate)} | {"user_profile_id", "workspace_id"}
        assert set(get_type_hints(MessageCreateParamsNonStreaming)) <= known

    def test_stop_sequences_are_known_by_their_name(self) -> None:
        assert only_known({"stop_sequences": ["x"], "stop": "y"}, MessageCreate) == {"stop_sequences": ["x"]}

    def test_a_conversation_with_a_tool(self) -> None:
        """The blocks become messages, calls and outputs; neighbours of one role are joined."""
        turn = asked(
            system=[{"type": "text", "text": "be"}, {"type": "text", "text": "brief", "cache_control": {}}],
            messages=[
                {"role": "user", "content": "one"},
                {"role": "user", "content": [{"type": "text", "text": "two"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "x"},
                        {"type": "text", "text": "three"},
                        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                        {"type": "tool_use", "id": "b", "name": "f", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "4"}]},
                        {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True},
                        {"type": "text", "text": "five"},
                    ],
                },
            ],
        )
        assert turn.messages == (
            Message("system", "be\nbrief"),
            Message("user", "one\ntwo"),
            Message("assistant", "three", (ToolCall("a", "f", '{"x":1}'), ToolCall("b", "f", "{}"))),
            Message("tool", "4", answers="a"),
            Message("tool", "Error: no", answers="b"),
            Message("user", "five"),
        )

    def test_a_system_message_before_the_first_answer_belongs_to_the_prompt(self) -> None:
        """Claude Code sends one behind the question; later ones stay where they are."""
        env: dict[str, Any] = {"role": "system", "content": "env"}
        later = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}, env]
        assert asked(system="be", messages=[*BODY["messages"], env, *later]).messages == (
            Message("system", "be\nenv"),
            *asked().messages,
            Message("assistant", "a"),
            Message("user", "b"),
            Message("system", "env"),
        )
        assert asked(messages=[*BODY["messages"], env]).messages == (Message("system", "env"), *asked().messages)

    def test_parameters(self) -> None:
        turn = asked(temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["x"], metadata={"user_id": "u"})
        assert (turn.sampling.temperature, turn.sampling.top_p, turn.sampling.top_k) == (0.5, 0.9, 3)
        assert (turn.stop, turn.max_output_tokens, turn.metadata, turn.store) == (("x",), 9, {}, False)

    def test_a_message_that_was_begun_is_continued(self) -> None:
        begun = asked(messages=[*BODY["messages"], {"role": "assistant", "content": "I"}])
        assert begun.template == {"add_generation_prompt": False, "continue_final_message": True}
        assert asked().template == {}

    def test_what_has_no_effect(self) -> None:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        assert asked(thinking=thinking, service_tier="standard_only", cache_control={"type": "ephemeral"}) == asked()

    @pytest.mark.parametrize(
        ("choice", "expected"),
        [
            (None, ("auto", ("f", "g"), True)),
            ({"type": "auto", "disable_parallel_tool_use": True}, ("auto", ("f", "g"), False)),
            ({"type": "any"}, ("required", ("f", "g"), True)),
            ({"type": "tool", "name": "g"}, ("required", ("g",), False)),
            ({"type": "none"}, ("none", ("f", "g"), True)),
        ],
    )
    def test_tool_choices(self, choice: Any, expected: Any) -> None:
        tools = asked(tools=[TOOL, {**TOOL, "name": "g"}], tool_choice=choice).tools
        assert tools is not None
        assert (tools.mode, tools.allowed, tools.parallel) == expected

    def test_a_format(self) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        format = asked(output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "low"}).format
        assert format is not None and json.loads(format.grammar.source) == schema

    @pytest.mark.parametrize(
        ("change", "where"),
        [
            ({"max_tokens": None}, "max_tokens"),
            ({"temperature": 3}, "temperature"),
            ({"stop_sequences": [""]}, "stop_sequences"),
            ({"stop": "x"}, "stop"),
            ({"nonsense": 1}, "nonsense"),
            ({"container": "c"}, "container"),
            ({"messages": []}, "messages"),
            ({"system": "s", "messages": [{"role": "user", "content": []}]}, "messages"),
            ({"messages": [*BODY["messages"], CALLING]}, "messages"),
            ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
            ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
            ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]}, "messages[0]"),
            ({"system": [{"type": "image"}]}, "system[0].type"),
            ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
            ({"tools": [TOOL, TOOL]}, "tools[1].name"),
            ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
            ({"tool_choice": {"type": "any"}}, "tool_choice"),
            ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "h"}}, "tool_choice.name"),
            ({"tools": [TOOL], "tool_choice": {"type": "always"}}, "tool_choice.type"),
        ],
    )
    def test_what_is_refused(self, change: dict[str, Any], where: str) -> None:
        """By its place, which the message names."""
        with pytest.raises(InvalidRequest) as caught:
            asked(**change)
        assert caught.value.param is not None and caught.value.param.startswith(where)
        assert where in caught.value.message

    def test_a_count_is_of_the_same_prompt(self) -> None:
        prompt = {key: value for key, value in BODY.items() if key != "max_tokens"} | {"system": "s", "tools": [TOOL]}
        counted, turn = parse_message_count(prompt), asked(system="s", tools=[TOOL])
        assert (counted.messages, counted.tools) == (turn.messages, turn.tools)


TEXT = st.text(min_size=1, max_size=5)
ITEM = st.one_of(st.lists(TEXT, max_size=3), st.tuples(TEXT, st.dictionaries(TEXT, st.integers(), max_size=2)))


def log_of(items: Sequence[Any], finished: Finished) -> TurnLog:
    """Return a log with these messages (lists of deltas) and calls (name and arguments)."""
    log = TurnLog()
    log.append(ROUTED)
    for index, item in enumerate(items):
        if isinstance(item, list):
            for piece in item:
                log.append(TextDelta(piece))
        else:
            name, arguments = item
            log.append(CallBegun(f"call_{index}", name))
            text = json.dumps(arguments)
            for piece in (text[:1], "", text[1:]):
                log.append(ArgumentsDelta(piece))
            log.append(CallEnded(True))
    log.append(finished)
    return log


class TestAnswers:
    @given(
        st.lists(ITEM, max_size=4),
        st.sampled_from(["stop", "length", "content_filter"]),
        st.one_of(st.none(), TEXT),
    )
    def test_a_stream_adds_up_to_the_whole_message(self, items: Any, reason: Any, stop: str | None) -> None:
        """By the package's own arithmetic, every event valid in its types."""
        log = log_of(items, Finished(reason, TokenUsage(7, 2, 5), stop=stop))
        whole = AnthropicMessage.model_validate(message(log, "msg_1", "m"), strict=True)
        check(whole)
        stream, snapshot, buffers = MessageStream(log, "msg_1", "m"), None, dict[int, Any]()
        events = [event for entry in log.read(-1) for event in stream.events(entry)]
        assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
        assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
        for event in events:
            if event["type"] != "ping":
                valid = EVENT.validate_python(event, strict=True)
                check(valid)
                snapshot = accumulate_event(event=valid, current_snapshot=snapshot, json_bufs=buffers)
        assert snapshot is not None
        assert snapshot.model_dump(exclude={"content": {"__all__": {"parsed_output"}}}) == whole.model_dump()

    @pytest.mark.parametrize(
        ("items", "finished", "expected"),
        [
            ([["a"]], Finished("stop", TokenUsage()), ("end_turn", None)),
            ([["a"]], Finished("stop", TokenUsage(), stop="x"), ("stop_sequence", "x")),
            ([("f", {})], Finished("stop", TokenUsage()), ("tool_use", None)),
            ([("f", {})], Finished("length", TokenUsage()), ("max_tokens", None)),
            ([["a"]], Finished("content_filter", TokenUsage()), ("refusal", None)),
        ],
    )
    def test_stop_reasons(self, items: Any, finished: Finished, expected: Any) -> None:
        body = message(log_of(items, finished), "msg_1", "m")
        assert (body["stop_reason"], body["stop_sequence"]) == expected

    def test_input_tokens_are_those_that_no_cache_had(self) -> None:
        usage = message(log_of([["a"]], Finished("stop", TokenUsage(7, 2, 5))), "msg_1", "m")["usage"]
        assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (5, 2, 5)


def subclasses(kind: type[ApiError]) -> list[type[ApiError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in subclasses(child))]


@pytest.mark.parametrize("kind", subclasses(ApiError))
def test_every_error_is_one_of_anthropics(kind: type[ApiError]) -> None:
    error = kind.__new__(kind)
    ApiError.__init__(error, "told")
    body = anthropic_error(error, "req_1")
    if anthropic_status(error) != 413:  # documented, but not in the package's types
        check(ErrorResponse.model_validate(body, strict=True))
    assert (body["request_id"], body["error"]["message"].endswith("told")) == ("req_1", True)
    assert body["error"]["message"].startswith("prompt is too long") == (kind is ContextLengthExceeded)
