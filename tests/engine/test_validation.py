"""Bad requests are refused with a message that names the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.request import RequestError
from engine.validation import validate
from engine.wire import Generate, SamplingParams
from tests.engine.ledger_runner import VOCABULARY, model_info

GOOD = Generate("a", [1, 2, 3], SamplingParams())
MODEL = model_info(context=64)


def test_a_plain_request_is_accepted() -> None:
    validate(GOOD, MODEL)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"salt": b"x" * 1025}, "salt: at most 1024 bytes"),
        ({"adapter": "0" * 64}, "adapter: this engine serves none"),
        ({"prompt": []}, "prompt: is empty"),
        ({"prompt": [1] * 64}, "prompt: 64 tokens leave no room"),
        ({"prompt": [VOCABULARY]}, "prompt: token ids must be from 0 to 49"),
        ({"prompt": [-1]}, "prompt: token ids"),
        ({"tenant": "x" * 129}, "tenant: at most 128 characters"),
        ({"weight": 0.0}, "weight: must be from 0.01 to 100"),
        ({"weight": float("nan")}, "weight: must be from 0.01 to 100"),
        ({"queue_timeout": 0.0}, "queue_timeout: must be above 0"),
        ({"timeout": float("inf")}, "timeout: must be above 0"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        validate(msgspec.structs.replace(GOOD, **fields), MODEL)
    assert caught.value.kind == "invalid"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
        ("stop_token_ids", (VOCABULARY,)),
        ("stop_token_ids", (1,) * 65),
        ("logit_bias", {VOCABULARY: 1.0}),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", {token: 0.0 for token in range(1025)}),
    ],
)
def test_a_bad_sampling_parameter_is_named(name: str, value: Any) -> None:
    sampling = msgspec.structs.replace(SamplingParams(), **{name: value})
    with pytest.raises(RequestError, match=f"^{name}: "):
        validate(msgspec.structs.replace(GOOD, sampling=sampling), MODEL)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0),
        ("top_p", 1.0),
        ("top_k", 10_000),
        ("logprobs", 0),
        ("logprobs", 20),
        ("min_tokens", 16),
        ("logit_bias", {0: -100.0, VOCABULARY - 1: 100.0}),
    ],
)
def test_values_at_the_limit_are_accepted(name: str, value: Any) -> None:
    sampling = msgspec.structs.replace(SamplingParams(), **{name: value})
    validate(msgspec.structs.replace(GOOD, sampling=sampling), MODEL)


@pytest.mark.parametrize(
    "adapter", ["pirate", "", "0" * 31, "0" * 129, "F" * 64, "../../../../etc/passwd", "0" * 63 + "\n"]
)
def test_an_adapter_is_named_by_its_version(adapter: str) -> None:
    with pytest.raises(RequestError, match="adapter: not a version; send 32 to 128 hexadecimal digits"):
        validate(Generate("a", [1], SamplingParams(), adapter=adapter), model_info(), adapters=True)


@pytest.mark.parametrize("adapter", ["0" * 32, "0123456789abcdef" * 4, "f" * 128, None])
def test_a_version_that_may_exist_is_let_through(adapter: str | None) -> None:
    validate(Generate("a", [1], SamplingParams(), adapter=adapter), model_info(), adapters=True)
