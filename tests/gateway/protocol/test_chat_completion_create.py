"""The body of `/v1/chat/completions`: what becomes of each parameter, and what is refused by name."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from msgspec.structs import fields
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

from gateway.errors import InvalidRequest
from gateway.protocol.caching import Caching
from gateway.protocol.chat_completion_create import ChatCompletionCreate, parse_chat_completion_create
from gateway.protocol.requests import Message, Sampling, ToolCall, TurnRequest

USER = [{"role": "user", "content": "hello"}]


def turn(**body: Any) -> TurnRequest:
    """The one turn that a body asks for."""
    (turn,) = parse_chat_completion_create({"messages": USER, **body}).turns
    return turn


def test_every_parameter_of_openais_is_known() -> None:
    """Served or refused by name, but never an unknown field."""
    known = {field.name for field in fields(ChatCompletionCreate)}
    assert set(get_type_hints(CompletionCreateParamsNonStreaming)) <= known


def test_the_least_body_asks_for_what_the_model_wants() -> None:
    """No parameter has a default of ours."""
    assert turn() == TurnRequest(model="auto", messages=(Message("user", "hello"),), store=False)


def test_parameters_reach_the_turn() -> None:
    """OpenAI's and those that open-source servers share."""
    sampling: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 5,
        "ignore_eos": True,
        "min_tokens": 2,
    }
    request = turn(
        **sampling,
        model="small",
        max_completion_tokens=9,
        logit_bias={"12": -100},
        logprobs=True,
        top_logprobs=4,
        stop=["a", "b"],
        metadata={"k": "v"},
        user="someone",
    )
    assert request.sampling == Sampling(**sampling, logit_bias={12: -100.0}, logprobs=4)
    assert (request.model, request.max_output_tokens, request.stop) == ("small", 9, ("a", "b"))
    assert request.metadata == {"k": "v"}


def test_both_names_of_the_output_limit_are_understood() -> None:
    """And may be sent together if they agree."""
    assert turn(max_tokens=7).max_output_tokens == 7
    assert turn(max_tokens=7, max_completion_tokens=7).max_output_tokens == 7


def test_cache_control_and_the_body_can_forbid_storing() -> None:
    """The header as in HTTP, the body as everywhere in this API."""
    body = {"messages": USER}
    assert parse_chat_completion_create(body, Caching(no_store=True)).turns[0].caching.no_store
    assert turn(roundhouse={"cache": "no-store"}).caching == Caching(no_store=True)
    assert turn().caching == Caching()


@pytest.mark.parametrize(
    "neutral",
    [
        {"tools": [], "tool_choice": "auto", "functions": [], "function_call": "none"},
        {"response_format": {"type": "text"}, "modalities": ["text"], "audio": None},
        {"service_tier": "auto", "verbosity": "low", "reasoning_effort": "high", "store": True},
    ],
)
def test_parameters_that_ask_for_nothing_are_accepted(neutral: dict[str, Any]) -> None:
    """Clients send some of them always."""
    assert turn(**neutral) == turn()


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
        ({"audio": {"voice": "alloy"}}, "audio", "unsupported_parameter"),
        ({"prediction": {"type": "content"}}, "prediction", "unsupported_parameter"),
        ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
        ({"verbosity": "endless"}, "verbosity", "invalid_value"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].name", "missing_required_parameter"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"skip_special_tokens": "no"}, "skip_special_tokens", "invalid_value"),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens", "invalid_value"),
        ({"continue_final_message": True}, "continue_final_message", "invalid_value"),
        (
            {"chat_template_kwargs": {"continue_final_message": True}},
            "chat_template_kwargs.continue_final_message",
            "invalid_value",
        ),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "invalid_value"),
        ({"chat_template_kwargs": {"tools": None}}, "chat_template_kwargs.tools", "invalid_value"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token", "invalid_value"),
        ({"chat_template_kwargs": {"date": "<|user|>"}}, "chat_template_kwargs.date", "invalid_value"),
        ({"messages": None}, "messages", "invalid_value"),
        ({"messages": "hello"}, "messages", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": ["hello"]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "invalid_value"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [*USER, {"role": "user", "content": [1]}]}, "messages[1].content[0]", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages[0].content[0].text",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls[0]",
            "invalid_value",
        ),
        ({"messages": [{"role": "user", "content": "x", "tone": 1}]}, "messages[0].tone", "unknown_parameter"),
        ({"model": 5}, "model", "invalid_value"),
        ({"temperature": 2.5}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
        ({"max_tokens": 7, "max_completion_tokens": 8}, "max_tokens", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 129}, "n", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logit_bias": {"the": 1}}, "logit_bias", "invalid_request"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"stop": [""]}, "stop[0]", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "unknown_parameter"),
        ({"metadata": {"k": 1}}, "metadata.k", "invalid_value"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str, code: str) -> None:
    """The error's `param` is the path of the field, and the message begins with what it is about."""
    with pytest.raises(InvalidRequest) as caught:
        turn(**body)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert param.partition("[")[0] in caught.value.message


def test_names_and_thoughts_are_left_out() -> None:
    """Clients send them with messages of every role."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "be brief", "name": "boss"},
        {"role": "user", "content": "hi", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "name": "bot", "reasoning_content": "hm"},
        {"role": "tool", "content": "5", "tool_call_id": "c1", "name": "f"},
    ]
    assert turn(messages=messages).messages == (
        Message("system", "be brief"),
        Message("user", "hi"),
        Message("assistant", "", (ToolCall("c1", "f", "{}"),)),
        Message("tool", "5", answers="c1"),
    )


def test_a_call_of_the_older_kind_is_answered_by_name() -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    output = {"role": "function", "name": "f", "content": "5"}
    assert turn(messages=[*USER, called, output]).messages[1:] == (
        Message("assistant", "", (ToolCall("function_f", "f", "{}"),)),
        Message("tool", "5", answers="function_f"),
    )


def test_a_refusal_is_what_the_assistant_said() -> None:
    parts = [{"type": "refusal", "refusal": "I cannot."}]
    for message in ({"content": None, "refusal": "I cannot."}, {"content": parts}):
        assert turn(messages=[{"role": "assistant", **message}]).messages == (Message("assistant", "I cannot."),)


def test_parameters_of_other_servers() -> None:
    """vLLM's and Ollama's, where engines have what they ask for."""
    assert turn(repeat_penalty=1.2).sampling == Sampling(repetition_penalty=1.2)
    assert turn(stop_token_ids=[5, 6]).sampling == Sampling(stop_token_ids=(5, 6))
    assert turn(skip_special_tokens=True, spaces_between_special_tokens=True) == turn()
    assert turn(skip_special_tokens=False).skip_special_tokens is False
    assert turn(chat_template_kwargs={"enable_thinking": False}).template == {"enable_thinking": False}
    assert turn(add_generation_prompt=False).template == {"add_generation_prompt": False}
    schema = {"type": "object"}
    for name, value in (("json", schema), ("regex", "a+"), ("choice", ["a", "b"]), ("grammar", 'start: "a"')):
        format = turn(**{f"guided_{name}": value}).format
        expected = turn(structured_outputs={name: value}).format
        assert format is not None and expected is not None
        assert (format.grammar, format.param) == (expected.grammar, f"guided_{name}")


def test_a_message_of_the_assistant_is_continued() -> None:
    """vLLM's clients send `add_generation_prompt` with it, and other variables."""
    begun = [*USER, {"role": "assistant", "content": "I"}]
    for extra in ({}, {"add_generation_prompt": False}):
        request = turn(messages=begun, continue_final_message=True, chat_template_kwargs={"x": 1}, **extra)
        assert request.template == {"x": 1, "add_generation_prompt": False, "continue_final_message": True}
    assert turn(messages=begun, continue_final_message=False).template == {}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for refused in (
        {"messages": begun, "add_generation_prompt": True},
        {"messages": [*USER, {"role": "assistant", "content": "I", "tool_calls": [call]}]},
    ):
        with pytest.raises(InvalidRequest) as caught:
            turn(continue_final_message=True, **refused)
        assert caught.value.param == "continue_final_message"


def test_messages_are_needed() -> None:
    """The one parameter without a default."""
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_completion_create({"model": "auto"})
    assert (caught.value.param, caught.value.code) == ("messages", "missing_required_parameter")
