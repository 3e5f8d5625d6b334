"""Requests to servers that take messages, in their dialects."""

from __future__ import annotations

from typing import Any

import pytest

from engine.client.conversation import ChatCall, ChatPrompt, ChatPromptMessage, ChatTool
from engine.client.generation import RequestInvalid
from engine.wire import Generate, Grammar, SamplingParams
from gateway.config.pools import MESSAGE_DIALECTS as CONFIGURED
from gateway.upstreams.dialects import MESSAGE_DIALECTS
from gateway.upstreams.messages.body import request_body
from gateway.upstreams.messages.dialect import MessageDialect

OPENAI, OLLAMA, TGI, ANTHROPIC = (MESSAGE_DIALECTS[name] for name in ("openai", "ollama", "tgi", "anthropic"))
OPENAI_LIKE = {each.name: each for each in (OPENAI, OLLAMA, TGI)}
SCHEMA = Grammar("json_schema", '{"type":"object"}')
NOW = ChatTool("now", None, {"type": "object"})
every_dialect = pytest.mark.parametrize("dialect", OPENAI_LIKE.values(), ids=OPENAI_LIKE)


def conversation(*messages: ChatPromptMessage, **fields: Any) -> ChatPrompt:
    return ChatPrompt(**{"messages": messages or [ChatPromptMessage("user", "hello")], "tokens": 5, **fields})


def body(
    dialect: MessageDialect, asked: ChatPrompt | None = None, sampling: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    params = SamplingParams(**{"max_tokens": 20, **(sampling or {})})
    return request_body(asked or conversation(), Generate("1", [], params, **fields), dialect, "m")


def test_the_configuration_knows_which_dialects_take_messages() -> None:
    assert {*MESSAGE_DIALECTS} == CONFIGURED


@every_dialect
def test_it_streams_and_says_what_it_counts(dialect: MessageDialect) -> None:
    found = body(dialect)
    assert (found["stream"], found["max_tokens"]) == (True, 20)
    assert found["stream_options"] == {"include_usage": True}
    assert found["model"] == ("tgi" if dialect is TGI else "m")


@every_dialect
def test_temperatures_are_always_told_since_servers_have_defaults_of_their_own(dialect: MessageDialect) -> None:
    found = body(dialect, sampling={"seed": 2**40 + 3})
    assert found["temperature"] == 1.0
    assert 0 <= found["seed"] < 2**31
    assert found.get("top_p") == (None if dialect is TGI else 1.0)


@pytest.mark.parametrize(
    ("dialect", "sampling", "field"),
    [
        (OPENAI, {"top_k": 5}, "top_k"),
        (OPENAI, {"min_p": 0.1}, "min_p"),
        (OPENAI, {"ignore_eos": True}, "ignore_eos"),
        (OPENAI, {"stop_token_ids": (5,)}, "stop_token_ids"),
        (OPENAI, {"logprobs": 21}, "logprobs"),
        (OLLAMA, {"logit_bias": {5: 1.0}}, "logit_bias"),
        (TGI, {"presence_penalty": 1.0}, "presence_penalty"),
        (TGI, {"logprobs": 6}, "logprobs"),
        (ANTHROPIC, {"logprobs": 0}, "logprobs"),
        (ANTHROPIC, {"frequency_penalty": 1.0}, "frequency_penalty"),
    ],
)
def test_what_a_server_lacks_is_refused(dialect: MessageDialect, sampling: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestInvalid, match=f"^{field}: ") as refused:
        body(dialect, sampling=sampling)
    assert (refused.value.field, refused.value.started) == (field, False)


def test_an_adapter_is_refused() -> None:
    with pytest.raises(RequestInvalid, match=r"^adapter: "):
        body(OPENAI, adapter="a" * 32)


def test_calls_and_their_outputs_are_told_as_openai_does() -> None:
    asked = conversation(
        ChatPromptMessage("user", "What time is it?"),
        ChatPromptMessage("assistant", "", [ChatCall("call_1", "now", "")]),
        ChatPromptMessage("tool", "noon", answers="call_1"),
    )
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    assert body(OPENAI, asked)["messages"][1:] == [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "noon", "tool_call_id": "call_1"},
    ]


def test_functions_are_offered_and_required() -> None:
    two = [NOW, ChatTool("then", "Tells another time.", {"type": "object"}, strict=True)]
    found = body(OPENAI, conversation(tools=two, must_call=True))
    assert found["tools"][1]["function"] == {
        "name": "then",
        "description": "Tells another time.",
        "parameters": {"type": "object"},
        "strict": True,
    }
    assert (found["tool_choice"], found["parallel_tool_calls"]) == ("required", True)
    assert body(OPENAI, conversation(tools=[NOW], must_call=True))["tool_choice"] == "required"
    assert body(OPENAI, conversation(tools=two, parallel=False))["parallel_tool_calls"] is False
    assert "tool_choice" not in body(OLLAMA, conversation(tools=[NOW]))
    assert "parallel_tool_calls" not in body(TGI, conversation(tools=[NOW], parallel=False))


@pytest.mark.parametrize(
    ("dialect", "asked", "field"),
    [
        (OLLAMA, conversation(tools=[NOW], must_call=True), "tool_choice"),
        (OLLAMA, conversation(tools=[NOW], parallel=False), "parallel_tool_calls"),
        (TGI, conversation(tools=[ChatTool("now", None, {}, strict=True)]), "tools"),
        (ANTHROPIC, conversation(tools=[ChatTool("now", None, {}, strict=True)]), "tools"),
    ],
)
def test_what_a_server_cannot_hold_calls_to_is_refused(dialect: MessageDialect, asked: ChatPrompt, field: str) -> None:
    with pytest.raises(RequestInvalid, match=f"^{field}: "):
        body(dialect, asked)


@every_dialect
def test_formats_are_the_server_s(dialect: MessageDialect) -> None:
    found = body(dialect, grammar=SCHEMA)["response_format"]
    assert found["json_schema"]["schema"] == {"type": "object"}
    assert body(dialect, grammar=Grammar("json_object", ""))["response_format"]["type"] == "json_object"
    for kind in ("choice", "lark"):
        with pytest.raises(RequestInvalid, match=r"^grammar: ") as refused:
            body(dialect, grammar=Grammar(kind, "[]"))  # type: ignore[arg-type]
        assert refused.value.field == "grammar"


def test_a_regular_expression_and_functions_with_a_format_depend_on_the_server() -> None:
    asked = conversation(tools=[NOW])
    assert body(TGI, grammar=Grammar("regex", "[ab]"))["response_format"] == {"type": "regex", "value": "[ab]"}
    assert {"tools", "response_format"} <= body(OPENAI, asked, grammar=SCHEMA).keys()
    with pytest.raises(RequestInvalid, match=r"^tools: "):
        body(TGI, asked, grammar=SCHEMA)


def test_anthropic_has_its_own_form_of_a_conversation() -> None:
    asked = conversation(
        ChatPromptMessage("system", "Be brief."),
        ChatPromptMessage("user", "What time is it, here and there?"),
        ChatPromptMessage("assistant", "", [ChatCall("1", "now", '{"zone":"UTC"}'), ChatCall("2", "now", "{")]),
        ChatPromptMessage("tool", "noon", answers="1"),
        ChatPromptMessage("tool", "night", answers="2"),
        ChatPromptMessage("user", "Thanks."),
        tools=[NOW],
        parallel=False,
    )
    found = body(ANTHROPIC, asked)
    assert (found["system"], found["max_tokens"], found["stream"]) == ("Be brief.", 20, True)
    user, assistant, last = found["messages"]
    assert user == {"role": "user", "content": [{"type": "text", "text": "What time is it, here and there?"}]}
    assert assistant["content"] == [
        {"type": "tool_use", "id": "1", "name": "now", "input": {"zone": "UTC"}},
        {"type": "tool_use", "id": "2", "name": "now", "input": {}},
    ]
    assert [block["type"] for block in last["content"]] == ["tool_result", "tool_result", "text"]
    assert found["tools"] == [{"name": "now", "input_schema": {"type": "object"}}]
    assert found["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


def test_anthropic_is_told_no_more_than_it_takes() -> None:
    found = body(ANTHROPIC, sampling={"seed": 7})
    assert not {"temperature", "top_p", "seed"} & found.keys()
    found = body(ANTHROPIC, conversation(tools=[NOW], must_call=True), sampling={"temperature": 0.0, "top_k": 5})
    assert (found["temperature"], found["top_k"]) == (0.0, 5)
    assert found["tool_choice"] == {"type": "tool", "name": "now"}
    with pytest.raises(RequestInvalid, match=r"^grammar: "):
        body(ANTHROPIC, grammar=SCHEMA)
