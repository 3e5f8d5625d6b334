"""Requests to servers, in their dialects."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from engine.client.generation import RequestInvalid
from engine.wire import Generate, Grammar, ModelInfo, SamplingParams
from gateway.config.pools import LOADING_DIALECTS, DialectName
from gateway.upstreams.body import request_body
from gateway.upstreams.dialect import TokenDialect
from gateway.upstreams.dialects import MESSAGE_DIALECTS, TOKEN_DIALECTS

MODEL = ModelInfo("org/model", "revision", 4096, 1000, (2,), 16, "vllm", "")
LLAMA_CPP, VLLM, SGLANG = TOKEN_DIALECTS["llama.cpp"], TOKEN_DIALECTS["vllm"], TOKEN_DIALECTS["sglang"]


def body(dialect: TokenDialect, sampling: SamplingParams | None = None, **fields: Any) -> dict[str, Any]:
    request = Generate("1", [5, 6, 7], sampling or SamplingParams(max_tokens=20), **fields)
    return request_body(request, dialect, MODEL)


def test_the_configuration_names_the_dialects_there_are() -> None:
    assert set(get_args(DialectName)) == {"roundhouse", *TOKEN_DIALECTS, *MESSAGE_DIALECTS}
    assert {name for name, each in TOKEN_DIALECTS.items() if each.adapters and each.adapters.load} == LOADING_DIALECTS


@pytest.mark.parametrize("dialect", TOKEN_DIALECTS.values(), ids=TOKEN_DIALECTS)
def test_it_streams_the_continuation_of_token_ids(dialect: TokenDialect) -> None:
    found = body(dialect)
    assert found[dialect.prompt] == [5, 6, 7]
    assert found["stream"] is True


def test_names_and_values_are_the_server_s() -> None:
    sampling = SamplingParams(
        max_tokens=20,
        temperature=0.5,
        top_k=0,
        repetition_penalty=1.1,
        logit_bias={7: -100.0},
        seed=2**40 + 3,
        logprobs=0,
    )
    llama, vllm, sglang = (body(dialect, msgspec.structs.replace(sampling)) for dialect in (LLAMA_CPP, VLLM, SGLANG))
    assert (llama["n_predict"], llama["repeat_penalty"], llama["top_k"]) == (20, 1.1, 0)
    assert llama["logit_bias"] == [(7, -100.0)]
    assert 0 <= llama["seed"] < 2**31
    assert llama["n_probs"] == 1  # with 0 there would be none at all
    assert (vllm["max_tokens"], vllm["top_k"], vllm["model"]) == (20, -1, "org/model")
    assert vllm["logit_bias"] == {"7": -100.0}
    assert (vllm["logprobs"], vllm["return_tokens_as_token_ids"]) == (0, True)
    inner = sglang["sampling_params"]
    assert (inner["max_new_tokens"], inner["top_k"], inner["temperature"]) == (20, -1, 0.5)
    assert (sglang["return_logprob"], sglang["top_logprobs_num"]) == (True, 0)
    assert "seed" not in inner


@pytest.mark.parametrize("dialect", TOKEN_DIALECTS.values(), ids=TOKEN_DIALECTS)
def test_defaults_are_sent_too(dialect: TokenDialect) -> None:
    """A server's own defaults, which may be the model's, do not count."""
    found = body(dialect)
    inner = found if dialect.within is None else found[dialect.within]
    named = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"}
    lacking = {"min_p", "presence_penalty"} if dialect.name == "onnxruntime" else set()
    assert named & dialect.sampling.keys() == named - lacking
    assert {dialect.sampling[name].name for name in named - lacking} <= inner.keys()


@pytest.mark.parametrize("dialect", TOKEN_DIALECTS.values(), ids=TOKEN_DIALECTS)
def test_stop_tokens_are_watched_here(dialect: TokenDialect) -> None:
    assert body(dialect, SamplingParams(max_tokens=20, stop_token_ids=(9,))) == body(dialect)


def test_what_a_server_lacks_is_refused_by_name() -> None:
    with pytest.raises(RequestInvalid, match="min_tokens") as refused:
        body(LLAMA_CPP, SamplingParams(max_tokens=20, min_tokens=3))
    assert refused.value.field == "min_tokens"
    assert body(VLLM, SamplingParams(max_tokens=20, min_tokens=3))["min_tokens"] == 3
    for lacking in (
        SamplingParams(min_p=0.1),
        SamplingParams(presence_penalty=0.5),
        SamplingParams(frequency_penalty=0.5),
        SamplingParams(logit_bias={7: 1.0}),
    ):
        with pytest.raises(RequestInvalid, match="servers of the dialect onnxruntime have no such parameter"):
            body(TOKEN_DIALECTS["onnxruntime"], lacking)


@pytest.mark.parametrize("dialect", TOKEN_DIALECTS.values(), ids=TOKEN_DIALECTS)
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"sampling": SamplingParams(max_tokens=20, prompt_logprobs=1)}, "prompt_logprobs"),
        ({"sampling": SamplingParams(max_tokens=20, temperature=-1.0)}, "temperature"),
        ({"sampling": SamplingParams(max_tokens=20, logit_bias={1000: 1.0})}, "logit_bias"),
    ],
)
def test_what_no_such_server_can_do_is_refused(dialect: TokenDialect, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        body(dialect, **fields)
    assert refused.value.field == field


def test_grammars_that_a_server_cannot_follow_are_refused() -> None:
    lark, regex = Grammar("lark", 'start: "a"'), Grammar("regex", "a/b")
    for dialect, grammar in ((LLAMA_CPP, lark), (VLLM, lark), (SGLANG, lark), (LLAMA_CPP, regex)):
        with pytest.raises(RequestInvalid) as refused:
            body(dialect, grammar=grammar)
        assert refused.value.field == "grammar"
    built = TOKEN_DIALECTS["llama.cpp-llguidance"]
    assert body(built, grammar=lark)["grammar"] == '%llguidance {}\nstart: "a"'
    assert body(built, grammar=regex)["grammar"] == "%llguidance {}\nstart: /a\\/b/"


def test_a_server_that_tells_too_few_log_probabilities_is_asked_for_no_more() -> None:
    trtllm = TOKEN_DIALECTS["tensorrt-llm"]
    assert body(trtllm, SamplingParams(max_tokens=20, logprobs=0))["logprobs"] == 1  # with 0 there would be none
    with pytest.raises(RequestInvalid, match="those of 0 tokens beside the chosen one") as refused:
        body(trtllm, SamplingParams(max_tokens=20, logprobs=1))
    assert refused.value.field == "logprobs"


def test_the_rest_of_an_answer_has_the_rest_of_its_limits() -> None:
    sampling = SamplingParams(max_tokens=20, min_tokens=8)
    request = Generate("2", [5, 6, 7, 11, 12], sampling, resumed=2)
    found = request_body(request, VLLM, MODEL)
    assert (found["prompt"], found["max_tokens"], found["min_tokens"]) == ([5, 6, 7, 11, 12], 18, 6)


def test_tenants_have_prefixes_of_their_own_where_the_server_can() -> None:
    assert body(VLLM, salt=b"\x01\xff")["cache_salt"] == "01ff"
    assert body(SGLANG, salt=b"\x01\xff")["extra_key"] == "01ff"
    assert body(LLAMA_CPP, salt=b"\x01\xff") == body(LLAMA_CPP)


@pytest.mark.parametrize("dialect", TOKEN_DIALECTS.values(), ids=TOKEN_DIALECTS)
def test_grammars_are_the_server_s(dialect: TokenDialect) -> None:
    for grammar in (
        Grammar("json_schema", '{"type": "object"}'),
        Grammar("json_object", ""),
        Grammar("choice", '["yes", "a|b\\n"]'),
    ):
        assert body(dialect, grammar=grammar) != body(dialect)
    assert msgspec.json.encode(body(dialect, grammar=Grammar("json_object", "")))
