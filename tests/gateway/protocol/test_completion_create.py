"""The body of `/v1/completions`: the kinds of prompts, scoring, and what is refused by name."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from msgspec.structs import fields
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming

from gateway.errors import InvalidRequest
from gateway.protocol.choices import ChoicesRequest
from gateway.protocol.completion_create import CompletionCreate, parse_completion_create
from gateway.protocol.requests import TurnRequest


def asked(**body: Any) -> ChoicesRequest:
    """What a body asks for."""
    return parse_completion_create({"prompt": "hello", **body})


def test_every_parameter_of_openais_is_known() -> None:
    """Served or refused by name, but never an unknown field."""
    known = {field.name for field in fields(CompletionCreate)}
    assert set(get_type_hints(CompletionCreateParamsNonStreaming)) <= known


def test_the_least_body_asks_for_sixteen_tokens() -> None:
    """OpenAI's default for this endpoint."""
    assert asked() == ChoicesRequest(
        turns=(TurnRequest(model="auto", prompt="hello", max_output_tokens=16, store=False),)
    )


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hello", ["hello"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [(1, 2, 3)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_a_prompt_is_text_or_token_ids_one_or_many(prompt: Any, prompts: list[Any]) -> None:
    """One turn per prompt, in their order."""
    assert [turn.prompt for turn in asked(prompt=prompt).turns] == prompts


def test_answers_to_one_prompt_are_neighbours() -> None:
    """With seeds that count up from the one given."""
    turns = asked(prompt=["one", "two"], n=2, seed=2**63 - 1).turns
    assert [turn.prompt for turn in turns] == ["one", "one", "two", "two"]
    assert [turn.sampling.seed for turn in turns] == [2**63 - 1, -(2**63)] * 2


def test_echo_scores_the_prompt_if_scores_are_asked_for() -> None:
    """`echo` alone needs no scores, and `logprobs` alone none of the prompt."""
    assert asked(echo=True, logprobs=3).turns[0].sampling.prompt_logprobs == 3
    assert asked(echo=True).turns[0].sampling.prompt_logprobs is None
    assert asked(logprobs=3).turns[0].sampling.prompt_logprobs is None
    assert asked(logprobs=3).turns[0].sampling.logprobs == 3


def test_no_tokens_generate_nothing() -> None:
    """`max_tokens` 0 runs the prompt alone."""
    turn = asked(echo=True, max_tokens=0).turns[0]
    assert not turn.generate
    assert turn.max_output_tokens is None


@pytest.mark.parametrize("neutral", [{"suffix": ""}, {"suffix": None}, {"best_of": 1}, {"n": 1, "best_of": 1}])
def test_parameters_that_ask_for_nothing_are_accepted(neutral: dict[str, Any]) -> None:
    """Clients send some of them always."""
    assert asked(**neutral) == asked()


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"suffix": "the end"}, "suffix", "unsupported_parameter"),
        ({"best_of": 3}, "best_of", "unsupported_parameter"),
        ({"n": 2, "best_of": 3}, "best_of", "unsupported_parameter"),
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"prompt": None}, "prompt", "invalid_value"),
        ({"prompt": 5}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": {}}, "prompt", "invalid_value"),
        ({"prompt": [None]}, "prompt[0]", "invalid_value"),
        ({"prompt": ["one", 2]}, "prompt[1]", "invalid_value"),
        ({"prompt": [1, "two"]}, "prompt[1]", "invalid_value"),
        ({"prompt": [True]}, "prompt[0]", "invalid_value"),
        ({"prompt": [1.5]}, "prompt[0]", "invalid_value"),
        ({"prompt": [-1]}, "prompt[0]", "invalid_value"),
        ({"prompt": [2**31]}, "prompt[0]", "invalid_value"),
        ({"prompt": [[1], []]}, "prompt[1]", "invalid_value"),
        ({"prompt": [[[1]]]}, "prompt[0][0]", "invalid_value"),
        ({"prompt": ["x"] * 129}, "prompt", "invalid_value"),
        ({"prompt": ["x"] * 65, "n": 2}, "prompt", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"logprobs": True}, "logprobs", "invalid_value"),
        ({"echo": "yes"}, "echo", "invalid_value"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str, code: str) -> None:
    """The error's `param` is the path of the field."""
    with pytest.raises(InvalidRequest) as caught:
        asked(**body)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert param.partition("[")[0] in caught.value.message


def test_a_prompt_is_needed() -> None:
    """The one parameter without a default."""
    with pytest.raises(InvalidRequest) as caught:
        parse_completion_create({"model": "auto"})
    assert (caught.value.param, caught.value.code) == ("prompt", "missing_required_parameter")
