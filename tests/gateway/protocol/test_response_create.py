"""Bodies of `/v1/responses`: what they become, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from engine.text.processor import SamplingDefaults
from gateway.errors import ApiError, InvalidRequest
from gateway.protocol.caching import Caching
from gateway.protocol.requests import Message, Sampling
from gateway.protocol.response_create import _NEUTRAL, ResponseCreate, parse_response_create


def parse(**body: Any) -> Any:
    return parse_response_create({"input": "hi", **body})[0]


def test_the_least_there_can_be() -> None:
    """Defaults: `auto`, stored, the model's own sampling."""
    request, stream = parse_response_create({"input": "hi"})
    assert (request.model, request.messages, request.store, stream) == ("auto", (Message("user", "hi"),), True, False)
    assert request.sampling == Sampling()


def test_messages_of_every_form_become_text() -> None:
    """Short and long forms, output of earlier turns, several parts."""
    request = parse(
        input=[
            {"role": "developer", "content": "be brief"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}],
            },
            {"role": "user", "content": [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]},
        ]
    )
    assert request.messages == (
        Message("system", "be brief"),
        Message("user", "a"),
        Message("assistant", "b"),
        Message("user", "c\nd"),
    )


def test_items_that_mean_nothing_here_are_left_out() -> None:
    """What another model has thought; a refusal is what it said."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}
    request = parse(input=[{"role": "user", "content": "a"}, thought, refused], client_metadata={"a": "b"})
    assert request.messages == (Message("user", "a"), Message("assistant", "I cannot."))
    assert parse(reasoning={"effort": "high", "summary": "auto"}).echo == {
        "reasoning": {"effort": "high", "summary": "auto"}
    }


def test_a_nucleus_of_nothing_is_the_most_likely_token() -> None:
    """As OpenAI allows it; engines want more than 0."""
    sampling = parse(top_p=0, temperature=1).sampling
    assert sampling.deterministic(SamplingDefaults())
    assert 0 < sampling.resolve(SamplingDefaults(), max_tokens=1, seed=1).top_p < 0.001


def test_sampling_parameters_go_through() -> None:
    """OpenAI's and those beyond."""
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "seed": 3}
    more = {"presence_penalty": 1.0, "frequency_penalty": -1.0, "ignore_eos": True, "min_tokens": 2}
    request = parse(**given, **more, stop="x", logit_bias={"5": -100})
    assert request.sampling == Sampling(**given, **more, logit_bias={5: -100.0})
    assert request.stop == ("x",)


@pytest.mark.parametrize(
    ("body", "logprobs"),
    [
        ({}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"top_logprobs": 3}, 3),
        ({"include": ["reasoning.encrypted_content"]}, None),
        ({"top_logprobs": 0}, None),
    ],
)
def test_logprobs(body: dict[str, Any], logprobs: int | None) -> None:
    """Asked for by `include` or by a number of alternatives."""
    assert parse(**body).sampling.logprobs == logprobs


def test_body_and_header_speak_about_the_cache() -> None:
    """Together: see `gateway.protocol.caching`."""
    body = {"input": "hi", "roundhouse": {"cache": "max-age=9", "cache_tags": ["faq"]}}
    request, _ = parse_response_create(body, Caching(refresh=True))
    assert request.caching == Caching(refresh=True, max_age=9, tags=("faq",))
    assert parse_response_create({"input": "hi"})[0].caching == Caching()


@pytest.mark.parametrize("body", [{"generate": False}, {"prompt_cache_options": {"prewarm": True, "mode": "implicit"}}])
def test_warm_up(body: dict[str, Any]) -> None:
    """Both of OpenAI's ways to ask for it."""
    assert not parse(**body).generate


def test_a_continued_turn_needs_no_input() -> None:
    """Anything else does."""
    assert parse_response_create({"previous_response_id": "resp_1"})[0].messages == ()
    for conversation in ("conv_1", {"id": "conv_1"}):
        request, _ = parse_response_create({"conversation": conversation})
        assert (request.messages, request.conversation) == ((), "conv_1")
    with pytest.raises(InvalidRequest) as caught:
        parse_response_create({"input": []})
    assert caught.value.param == "input"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": 5}, "invalid_value", "input"),
        ({"input": [5]}, "invalid_value", "input[0]"),
        ({"input": [{"type": "computer_call_output"}]}, "unsupported_parameter", "input[0].type"),
        ({"input": [{"type": ["message"]}]}, "unsupported_parameter", "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"role": ["user"], "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"role": "user"}]}, "invalid_value", "input[0].content"),
        ({"input": [{"role": "user", "content": "x", "name": "y"}]}, "unknown_parameter", "input[0].name"),
        ({"input": [{"role": "user", "content": ["x"]}]}, "invalid_value", "input[0].content[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "unsupported_parameter",
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "invalid_value",
            "input[0].content[0].text",
        ),
        ({"input": [{"type": "compaction"}]}, "invalid_value", "input[0].encrypted_content"),
        ({"conversation": 5}, "invalid_value", "conversation"),
        ({"conversation": ""}, "invalid_value", "conversation"),
        ({"conversation": {"id": "c", "name": "n"}}, "unknown_parameter", "conversation.name"),
        ({"conversation": "c", "previous_response_id": "r"}, "invalid_value", "conversation"),
        ({"background": "yes"}, "invalid_value", "background"),
        ({"background": True, "store": False}, "invalid_value", "background"),
        ({"model": 5}, "invalid_value", "model"),
        ({"model": ""}, "invalid_value", "model"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": 1.5}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": True}, "invalid_value", "max_output_tokens"),
        ({"temperature": 2.1}, "invalid_value", "temperature"),
        ({"temperature": float("nan")}, "invalid_value", "temperature"),
        ({"temperature": float("inf")}, "invalid_value", "temperature"),
        ({"top_p": -0.1}, "invalid_value", "top_p"),
        ({"repetition_penalty": float("nan")}, "invalid_value", "repetition_penalty"),
        ({"seed": 2**63}, "invalid_value", "seed"),
        ({"top_k": 2**64}, "invalid_value", "top_k"),
        ({"stop": ["x"] * 17}, "invalid_value", "stop"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"logit_bias": {"-1": 1}}, "invalid_request", "logit_bias"),
        ({"logit_bias": {"1": float("nan")}}, "invalid_value", "logit_bias.1"),
        ({"metadata": {"b": "x", "a": 1}}, "invalid_value", "metadata.a"),
        ({"metadata": {"a" * 65: "x"}}, "invalid_value", "metadata"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "invalid_value", "metadata"),
        ({"include": ["everything"]}, "invalid_value", "include[0]"),
        ({"top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"roundhouse": {"cache": "yes"}}, "invalid_value", "roundhouse.cache"),
        ({"roundhouse": {"cache_tags": ["a b"]}}, "invalid_value", "roundhouse.cache_tags"),
        ({"roundhouse": {"cache_tags": ["a"] * 9}}, "invalid_value", "roundhouse.cache_tags"),
        ({"roundhouse": {"cash": "no-store"}}, "unknown_parameter", "roundhouse.cash"),
        ({"stream_id": "a"}, "unknown_parameter", "stream_id"),
        ({"messages": []}, "unknown_parameter", "messages"),
    ],
    ids=str,
)
def test_bad_values_are_refused_by_name(body: dict[str, Any], code: str, param: str) -> None:
    """With a code for programs and a sentence for people."""
    with pytest.raises(InvalidRequest) as caught:
        parse(**body)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert param.split("[")[0] in caught.value.message


@pytest.mark.parametrize("name", _NEUTRAL)
def test_what_is_not_served_is_refused_unless_it_asks_for_nothing(name: str) -> None:
    """Instead of being ignored."""
    for harmless in (None, *_NEUTRAL[name]):
        parse(**{name: harmless})
    with pytest.raises(InvalidRequest) as caught:
        parse(**{name: {"something": "else"}})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)


def test_every_parameter_of_openais_is_known() -> None:
    """A new version of their package that adds one makes this test fail, and somebody decide."""
    ours = set(ResponseCreate.__struct_fields__)
    theirs = set(ResponseCreateParamsBase.__annotations__)
    assert theirs <= ours, theirs - ours


@given(
    st.dictionaries(
        st.sampled_from(ResponseCreate.__struct_fields__),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        ),
        max_size=4,
    )
)
def test_any_body_is_parsed_or_refused(body: dict[str, Any]) -> None:
    """Nothing but an `ApiError` is ever raised."""
    try:
        parse_response_create(body)
    except ApiError as error:
        assert error.message
