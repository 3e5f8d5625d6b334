"""The dialect of vLLM's server: `/v1/completions`, with a prompt of token ids and `return_token_ids`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from engine.wire import FinishReason, TokenIdLogprob
from gateway.upstreams.dialect import (
    AdapterDialect,
    AnswerChunk,
    Parameter,
    ServerDescription,
    TokenDialect,
    TokenId,
    UpstreamError,
    any_of,
)

_FINISH: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length"}
_TOKEN = "token_id:"
"""Prefix of token ids in log-probabilities, with `return_tokens_as_token_ids`."""


class _Logprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Struct):
    """An answer in an event of `/v1/completions`."""

    token_ids: list[TokenId] | None = None
    finish_reason: str | None = None


class _Choice(CompletionChoice):
    logprobs: _Logprobs | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens_details: _Details | None = None


class CompletionEvent(Struct):
    """An event of `/v1/completions`, but for its choices; the last one has `usage`, and no choices."""

    usage: _Usage | None = None
    error: UpstreamError | None = None

    def chunk_of(self, choice: CompletionChoice, logprobs: Sequence[TokenIdLogprob]) -> AnswerChunk:
        """Return what it says. Args: choice: the first one, if any."""
        details = self.usage.prompt_tokens_details if self.usage else None
        return AnswerChunk(
            tokens=choice.token_ids or (),
            logprobs=logprobs,
            finish=None if choice.finish_reason is None else _FINISH.get(choice.finish_reason, "error"),
            cached=details.cached_tokens if details else None,
            error=self.error,
        )


class VllmEvent(CompletionEvent):
    """An event of vLLM's `/v1/completions`."""

    choices: list[_Choice] = []

    def chunk(self) -> AnswerChunk:
        """See `AnswerEvent`."""
        choice = self.choices[0] if self.choices else _Choice()
        return self.chunk_of(choice, _logprobs(choice.logprobs) if choice.logprobs else ())


def _logprobs(found: _Logprobs) -> Sequence[TokenIdLogprob]:
    return [
        TokenIdLogprob(_id(token), logprob or 0.0, [(_id(other), value) for other, value in (top or {}).items()])
        for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True)
    ]


def _id(token: str) -> int:
    id: int = msgspec.convert(int(token.removeprefix(_TOKEN)), TokenId)
    return id


class _Model(Struct):
    id: str
    max_model_len: int | None = None
    root: str | None = None
    parent: str | None = None


class ServedModels(Struct):
    """The page `/v1/models`."""

    data: Annotated[list[_Model], Meta(min_length=1)]


def describe_models(models: bytes) -> ServerDescription:
    """Read `/v1/models`: the first one is the base model, adapters follow."""
    model = msgspec.json.decode(models, type=ServedModels).data[0]
    if model.max_model_len is None:
        raise ValueError("it does not say how long its model's context is")
    return ServerDescription(model.id, model.max_model_len, json.dumps([model.id, model.root]))


def listed_adapters(models: bytes) -> dict[str, str]:
    """Read `/v1/models`: requests call adapters by their names."""
    return {each.id: each.id for each in msgspec.json.decode(models, type=ServedModels).data if each.parent is not None}


def structured(kind: str, value: Any) -> dict[str, Any]:
    """Return the field that asks for an answer in a grammar."""
    return {"structured_outputs": {kind: value}}


def _biases(biases: dict[int, float]) -> dict[str, float]:
    return {str(token): bias for token, bias in biases.items()}


# Every parameter is sent, because these servers take those that are missing from the model's generation_config.json.
SAMPLING: Final = {
    "temperature": Parameter("temperature"),
    "top_k": Parameter("top_k", lambda count: count or -1),
    "top_p": Parameter("top_p"),
    "min_p": Parameter("min_p"),
    "repetition_penalty": Parameter("repetition_penalty"),
    "presence_penalty": Parameter("presence_penalty"),
    "frequency_penalty": Parameter("frequency_penalty"),
    "logit_bias": Parameter("logit_bias", _biases),
    "ignore_eos": Parameter("ignore_eos"),
}
"""Parameters that vLLM, SGLang and TensorRT-LLM call the same."""

VLLM: Final = TokenDialect(
    name="vllm",
    generate="/v1/completions",
    health="/health",
    about=("/v1/models",),
    describe=describe_models,
    metrics={
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "prompt_tokens": "vllm:prompt_tokens_total",
        "output_tokens": "vllm:generation_tokens_total",
        "preemptions": "vllm:num_preemptions_total",
    },
    prompt="prompt",
    model="model",
    constants={
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    },
    sampling={
        **SAMPLING,
        "max_tokens": Parameter("max_tokens"),
        "min_tokens": Parameter("min_tokens"),
        "seed": Parameter("seed", lambda seed: seed % 2**63),
    },
    logprobs=lambda wanted: {"logprobs": wanted, "return_tokens_as_token_ids": True},
    grammars={
        "json_schema": lambda source: structured("json", json.loads(source)),
        "json_object": lambda _: structured("json_object", True),
        "regex": lambda source: structured("regex", source),
        "choice": lambda source: structured("choice", any_of(source)),
    },
    salt="cache_salt",
    event=VllmEvent,
    adapters=AdapterDialect(
        page="/v1/models",
        listed=listed_adapters,
        select=lambda name: {"model": name},
        load="/v1/load_lora_adapter",
        unload="/v1/unload_lora_adapter",
        remedy="was it started with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and a large enough "
        "--max-lora-rank",
    ),
)
