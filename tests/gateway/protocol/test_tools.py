"""Tools and what is wanted of them, in the two spellings; calls and their outputs in conversations."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib._pydantic import to_strict_json_schema
from openai.types.responses import Response
from pydantic import BaseModel

from gateway.errors import InvalidRequest
from gateway.protocol.chat_completion_create import parse_chat_completion_create
from gateway.protocol.events import ResponseView
from gateway.protocol.log import TurnLog
from gateway.protocol.messages import check_answers
from gateway.protocol.requests import Message, ToolCall, TurnRequest
from gateway.protocol.response_create import parse_response_create
from gateway.protocol.tools import MAX_TOOLS, Tool, parse_tools

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FLAT: dict[str, Any] = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True, "description": "does"}
OTHER: dict[str, Any] = {"type": "function", "name": "g", "parameters": None, "strict": None}
USER = {"role": "user", "content": "hi"}


class City(BaseModel):
    """For the `openai` package's helpers."""

    city: str


def nested(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool or choice as chat completions spell it."""
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def flat(**body: Any) -> TurnRequest:
    return parse_response_create({"input": "hi", **body})[0]


def chat(**body: Any) -> TurnRequest:
    return parse_chat_completion_create({"messages": [USER], **body}).turns[0]


class TestTools:
    """What the model may call."""

    def test_both_apis_offer_the_same(self) -> None:
        """Flat and nested; a description, a schema and strictness are optional."""
        a = flat(tools=[FLAT, OTHER]).tools
        b = chat(tools=[nested(FLAT), nested(OTHER)]).tools
        assert a is not None and b is not None
        assert [(tool.name, tool.description, tool.parameters, tool.strict) for tool in a.tools] == [
            ("f", "does", SCHEMA, True),
            ("g", None, None, False),
        ]
        assert [tool.param for tool in a.tools] == ["tools[0].parameters", "tools[1].parameters"]
        assert b.tools[0].param == "tools[0].function.parameters"
        assert (a.mode, a.allowed, a.parallel, a.choice) == (b.mode, b.allowed, b.parallel, b.choice)
        assert (a.mode, a.allowed, a.parallel, a.choice) == ("auto", ("f", "g"), True, "auto")

    def test_a_function_without_parameters_takes_none(self) -> None:
        """And one whose schema has no type takes an object all the same."""
        assert Tool("g").schema == {"type": "object", "properties": {}, "additionalProperties": False}
        assert Tool("g", parameters={"properties": {}}).schema["type"] == "object"

    def test_what_the_openai_package_makes_of_a_pydantic_model(self) -> None:
        """`openai.pydantic_function_tool`, strict as it is."""
        request = chat(tools=[openai.pydantic_function_tool(City, name="weather")])
        assert request.tools is not None
        (tool,) = request.tools.tools
        assert (tool.name, tool.strict, tool.parameters) == ("weather", True, to_strict_json_schema(City))

    @pytest.mark.parametrize("tools", [None, []])
    @pytest.mark.parametrize("choice", [None, "auto", "none"])
    def test_none_at_all(self, tools: Any, choice: Any) -> None:
        """Whatever asks for nothing."""
        assert flat(tools=tools, tool_choice=choice).tools is None
        assert chat(tools=tools, tool_choice=choice).tools is None

    @pytest.mark.parametrize(
        ("tools", "param", "code"),
        [
            ({}, "tools", "invalid_value"),
            ([5], "tools[0]", "invalid_value"),
            ([FLAT] * (MAX_TOOLS + 1), "tools", "invalid_value"),
            ([FLAT, FLAT], "tools[1].name", "invalid_value"),
            ([{"type": "web_search"}], "tools[0].type", "unsupported_parameter"),
            ([{"type": "custom", "name": "c"}], "tools[0].type", "unsupported_parameter"),
            ([{"type": ["function"]}], "tools[0].type", "unsupported_parameter"),
            ([{"type": "function"}], "tools[0].name", "missing_required_parameter"),
            ([{**FLAT, "name": "a b"}], "tools[0].name", "invalid_value"),
            ([{**FLAT, "name": "n" * 65}], "tools[0].name", "invalid_value"),
            ([{**FLAT, "description": 5}], "tools[0].description", "invalid_value"),
            ([{**FLAT, "strict": "yes"}], "tools[0].strict", "invalid_value"),
            ([{**FLAT, "parameters": []}], "tools[0].parameters", "invalid_value"),
            ([{**FLAT, "parameters": {"title": "x" * 140_000}}], "tools[0].parameters", "invalid_value"),
            ([{**FLAT, "parameters": {"type": "string"}}], "tools[0].parameters.type", "invalid_value"),
            ([{**FLAT, "color": "red"}], "tools[0].color", "unknown_parameter"),
            ([{**FLAT, "defer_loading": True}], "tools[0].defer_loading", "unknown_parameter"),
        ],
    )
    def test_refused_by_field(self, tools: Any, param: str, code: str) -> None:
        """With the message naming it too."""
        with pytest.raises(InvalidRequest) as caught:
            flat(tools=tools)
        assert (caught.value.param, caught.value.code) == (param, code)
        assert param in caught.value.message

    @pytest.mark.parametrize(
        ("tool", "param"),
        [
            (FLAT, "tools[0].name"),
            ({"type": "function"}, "tools[0].function"),
            ({"type": "function", "function": {}}, "tools[0].function.name"),
            (nested({**FLAT, "parameters": 5}), "tools[0].function.parameters"),
            (nested({**FLAT, "color": 1}), "tools[0].function.color"),
        ],
    )
    def test_refused_by_nested_field(self, tool: Any, param: str) -> None:
        """Chat completions' paths."""
        with pytest.raises(InvalidRequest) as caught:
            chat(tools=[tool])
        assert caught.value.param == param

    def test_what_goes_together(self) -> None:
        """A grammar cannot become part of another. Without calls it may be."""
        body = {"text": {"format": {"type": "grammar", "definition": 'start: "a"'}}}
        with pytest.raises(InvalidRequest) as caught:
            flat(tools=[FLAT], **body)
        assert caught.value.param == "text.format.definition"
        assert flat(tools=[FLAT], tool_choice="none", **body).tools is not None


class TestChoice:
    """What is wanted of them."""

    @pytest.mark.parametrize(
        ("choice", "mode", "allowed", "parallel", "enforced"),
        [
            (None, "auto", ("g", "h"), True, False),
            ("none", "none", ("g", "h"), True, False),
            ("required", "required", ("g", "h"), True, True),
            ({"type": "function", "name": "h"}, "required", ("h",), False, True),
            (
                {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
                "auto",
                ("g",),
                True,
                True,
            ),
            (
                {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]},
                "required",
                ("g",),
                True,
                True,
            ),
        ],
    )
    def test_served(self, choice: Any, mode: str, allowed: tuple[str, ...], parallel: bool, enforced: bool) -> None:
        """In both spellings, and repeated in the response."""
        tools = [OTHER, {**OTHER, "name": "h"}]
        request = flat(tools=tools, tool_choice=choice)
        use = request.tools
        assert use is not None
        assert (use.mode, use.allowed, use.parallel, use.enforced) == (mode, allowed, parallel, enforced)
        spelled = choice
        if isinstance(choice, dict):
            spelled = nested(choice)
            if choice["type"] == "allowed_tools":
                inner = {"mode": choice["mode"], "tools": [nested(tool) for tool in choice["tools"]]}
                spelled = {"type": "allowed_tools", "allowed_tools": inner}
        other = chat(tools=[nested(tool) for tool in tools], tool_choice=spelled).tools
        assert other is not None
        assert (other.mode, other.allowed, other.parallel, other.choice) == (mode, allowed, parallel, use.choice)
        shown = ResponseView("resp_1", 0, request, TurnLog()).response()
        assert shown["tool_choice"] == (choice or "auto")
        assert [tool["name"] for tool in shown["tools"]] == ["g", "h"]
        Response.model_validate(shown, strict=True)

    def test_what_has_to_be_enforced(self) -> None:
        """Free text would break it: a call that is required, strictness, some tools of several, one call at most."""
        assert not parse_tools([OTHER], "auto", None, nested=False).enforced  # type: ignore[union-attr]
        assert parse_tools([OTHER], "auto", False, nested=False).enforced  # type: ignore[union-attr]
        assert parse_tools([FLAT], "auto", None, nested=False).enforced  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("choice", "param"),
        [
            ("always", "tool_choice"),
            (5, "tool_choice"),
            ({"type": "mcp"}, "tool_choice.type"),
            ({"type": ["function"]}, "tool_choice.type"),
            ({"type": "function"}, "tool_choice.name"),
            ({"type": "function", "name": "h"}, "tool_choice.name"),
            ({"type": "function", "name": ["g"]}, "tool_choice.name"),
            ({"type": "allowed_tools"}, "tool_choice.tools"),
            ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
            ({"type": "allowed_tools", "mode": "none", "tools": [OTHER]}, "tool_choice.mode"),
            ({"type": "allowed_tools", "mode": "auto", "tools": [5]}, "tool_choice.tools[0]"),
            ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}, "tool_choice.tools[0]"),
        ],
    )
    def test_refused_by_field(self, choice: Any, param: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            flat(tools=[OTHER], tool_choice=choice)
        assert caught.value.param == param

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}])
    def test_a_call_without_tools_cannot_be_required(self, choice: Any) -> None:
        with pytest.raises(InvalidRequest) as caught:
            flat(tool_choice=choice)
        assert caught.value.param == "tool_choice"


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"city": "Rome"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}


class TestConversations:
    """Calls and their outputs."""

    def test_both_apis_tell_the_same_story(self) -> None:
        """Items of their own, or parts of messages."""
        items = [USER, {"role": "assistant", "content": "I look."}, CALL, {**CALL, "call_id": "c2"}, OUTPUT]
        calls = [{"id": id, **nested({"name": "f", "arguments": CALL["arguments"]})} for id in ("c1", "c2")]
        messages = [
            USER,
            {"role": "assistant", "content": "I look.", "tool_calls": calls, "refusal": None},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ]
        told = (
            Message("user", "hi"),
            Message(
                "assistant",
                "I look.",
                (ToolCall("c1", "f", '{"city": "Rome"}'), ToolCall("c2", "f", '{"city": "Rome"}')),
            ),
            Message("tool", "sunny", answers="c1"),
        )
        assert flat(input=items).messages == told
        assert chat(messages=messages).messages == told

    def test_items_come_back_as_they_went_out(self) -> None:
        """With ids, states and fields that are null; output in parts."""
        sent = {**CALL, "id": "fc_1", "status": "completed", "caller": None, "namespace": None, "async": None}
        parts = [{"type": "input_text", "text": "sun"}, {"type": "input_text", "text": "ny"}]
        messages = flat(input=[sent, {**OUTPUT, "output": parts, "id": None, "status": "completed"}]).messages
        assert messages == (
            Message("assistant", "", (ToolCall("c1", "f", '{"city": "Rome"}'),)),
            Message("tool", "sun\nny", answers="c1"),
        )
        null = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", **nested({"name": "f", "arguments": ""})}],
        }
        assert chat(messages=[null]).messages[0].content == ""

    @pytest.mark.parametrize(
        ("items", "param"),
        [
            ([OUTPUT], "input[0].call_id"),
            ([OUTPUT, CALL], "input[0].call_id"),
            ([CALL, {**OUTPUT, "call_id": 5}], "input[1].call_id"),
            ([CALL, {**OUTPUT, "call_id": ""}], "input[1].call_id"),
            ([CALL, {**OUTPUT, "output": 5}], "input[1].output"),
            ([CALL, {**OUTPUT, "output": [{"type": "input_image"}]}], "input[1].output[0].type"),
            ([{**CALL, "name": "a b"}], "input[0].name"),
            ([{**CALL, "arguments": {}}], "input[0].arguments"),
            ([{**CALL, "color": "red"}], "input[0].color"),
            ([{**CALL, "namespace": "n"}], "input[0].namespace"),
            ([{"type": "custom_tool_call"}], "input[0].type"),
            ([{"role": "tool", "content": "x"}], "input[0].role"),
        ],
    )
    def test_items_are_refused_by_field(self, items: list[Any], param: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            flat(input=items)
        assert caught.value.param == param

    @pytest.mark.parametrize(
        ("message", "param"),
        [
            ({"role": "tool", "content": "x", "tool_call_id": "c9"}, "messages[1].tool_call_id"),
            ({"role": "tool", "content": "x"}, "messages[1].tool_call_id"),
            ({"role": "tool", "content": "x", "tool_call_id": "c", "tone": "n"}, "messages[1].tone"),
            ({"role": "assistant", "content": None}, "messages[1].content"),
            ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls"),
            ({"role": "assistant", "tool_calls": [5]}, "messages[1].tool_calls[0]"),
            ({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}, "messages[1].tool_calls[0]"),
            ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[1].tool_calls[0].id"),
            (
                {"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]},
                "messages[1].tool_calls[0].function.name",
            ),
            (
                {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]},
                "messages[1].tool_calls[0].function.arguments",
            ),
            ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages[1].tool_calls"),
        ],
    )
    def test_messages_are_refused_by_field(self, message: dict[str, Any], param: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            chat(messages=[USER, message])
        assert caught.value.param == param

    def test_outputs_may_answer_an_earlier_response(self) -> None:
        """Which is known only later; then they are checked against it."""
        request = flat(input=[OUTPUT], previous_response_id="resp_1")
        check_answers(request.messages, [Message("assistant", "", (ToolCall("c1", "f", "{}"),))])
        with pytest.raises(InvalidRequest) as caught:
            check_answers(request.messages, [Message("assistant", "hello")])
        assert caught.value.param == "input"


words = st.sampled_from(
    ["function", "f", "auto", "required", "allowed_tools", "function_call", "c1", "tool", "assistant"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "name", "function", "parameters", "strict", "tools", "mode", "allowed_tools", "call_id"]
            )
            | st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "id", "arguments", "output"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(tools=values, choice=values, items=st.lists(values, max_size=3))
def test_any_body_is_parsed_or_refused(tools: Any, choice: Any, items: list[Any]) -> None:
    """Never anything else."""
    for parse in (
        lambda: flat(tools=tools, tool_choice=choice, text=choice),
        lambda: chat(tools=tools, tool_choice=choice, response_format=tools, structured_outputs=choice),
        lambda: flat(input=items),
        lambda: chat(messages=items),
    ):
        try:
            parse()
        except InvalidRequest as error:
            assert error.message
