"""The dialect of llama.cpp's server: `/completion`, with a prompt of token ids.

A token that ends inside a character is not sent: the event of the character's last token has that token and the whole
text. `gateway.upstreams.reading` restores the others from the text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Any, Final

import msgspec
from llguidance import regex_to_lark
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

_FINISH: Final[dict[str, FinishReason]] = {"eos": "stop", "word": "stop", "limit": "length"}
_MAX_SEED = 2**31


class _Likely(Struct):
    id: TokenId
    logprob: float


class _Position(_Likely):
    top_logprobs: list[_Likely] = []


class _Timings(Struct):
    cache_n: int | None = None


class LlamaCppEvent(Struct):
    """An event of `/completion`; the last one has `stop`, and neither text nor tokens."""

    content: str = ""
    tokens: list[TokenId] = []
    tokens_predicted: int | None = None
    stop: bool = False
    stop_type: str = "none"
    completion_probabilities: list[_Position] = []
    timings: _Timings = msgspec.field(default_factory=_Timings)
    error: UpstreamError | None = None

    def chunk(self) -> AnswerChunk:
        """See `AnswerEvent`."""
        return AnswerChunk(
            tokens=self.tokens,
            count=self.tokens_predicted,
            text=self.content,
            logprobs=[
                TokenIdLogprob(each.id, each.logprob, [(other.id, other.logprob) for other in each.top_logprobs])
                for each in self.completion_probabilities
            ],
            finish=_FINISH.get(self.stop_type, "stop") if self.stop else None,
            cached=self.timings.cache_n,
            error=self.error,
        )


class _Generation(Struct):
    n_ctx: int


class _Props(Struct):
    default_generation_settings: _Generation
    total_slots: int = 1


class _Model(Struct):
    id: str
    meta: dict[str, Any] | None = None


class _Models(Struct):
    data: Annotated[list[_Model], Meta(min_length=1)]


def _describe(models: bytes, props: bytes) -> ServerDescription:
    model = msgspec.json.decode(models, type=_Models).data[0]
    server = msgspec.json.decode(props, type=_Props)
    context = server.default_generation_settings.n_ctx
    identity = json.dumps([model.id, model.meta], sort_keys=True)
    return ServerDescription(model.id, context, identity, cache_tokens=context * server.total_slots)


class _TaskParams(Struct):
    seed: int


class _Slot(Struct):
    is_processing: bool
    params: _TaskParams | None = None


def _seeds(slots: bytes) -> list[int]:
    found = msgspec.json.decode(slots, type=list[_Slot])
    return [each.params.seed for each in found if each.is_processing and each.params is not None]


class _Adapter(Struct):
    id: int
    path: str


def _listed_adapters(page: bytes) -> dict[str, int]:
    """Read `/lora-adapters`: requests call an adapter by its number, and its file is named after its version."""
    found = msgspec.json.decode(page, type=list[_Adapter])
    return {PurePath(each.path).stem: each.id for each in found}


def _choices(source: str) -> dict[str, str]:
    """Return a GBNF grammar, whose literals are written as JSON's but for `\\u`."""
    literals = (json.dumps(choice, ensure_ascii=False) for choice in any_of(source))
    return {"grammar": f"root ::= {' | '.join(literals)}"}


def _lark(source: str) -> dict[str, str]:
    return {"grammar": f"%llguidance {{}}\n{source}"}


def _schema(source: str) -> dict[str, Any]:
    return {"json_schema": json.loads(source)}


def _pairs(biases: dict[int, float]) -> Sequence[tuple[int, float]]:
    return list(biases.items())


LLAMA_CPP: Final = TokenDialect(
    name="llama.cpp",
    generate="/completion",
    health="/health",
    about=("/v1/models", "/props"),
    describe=_describe,
    metrics={
        "running": "llamacpp:requests_processing",
        "waiting": "llamacpp:requests_deferred",
        "prompt_tokens": "llamacpp:prompt_tokens_total",
        "output_tokens": "llamacpp:tokens_predicted_total",
    },
    prompt="prompt",
    model=None,
    constants={
        "stream": True,
        "return_tokens": True,
        "cache_prompt": True,
        # Of the last event, which would repeat the prompt.
        "response_fields": ["content", "tokens", "tokens_predicted", "stop", "stop_type", "timings"],
        # The order in which we apply them.
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        # Penalties count the whole request: more than any context has.
        "repeat_last_n": 2**17,
    },
    sampling={
        "max_tokens": Parameter("n_predict"),
        "temperature": Parameter("temperature"),
        "top_k": Parameter("top_k"),
        "top_p": Parameter("top_p"),
        "min_p": Parameter("min_p"),
        "repetition_penalty": Parameter("repeat_penalty"),
        "presence_penalty": Parameter("presence_penalty"),
        "frequency_penalty": Parameter("frequency_penalty"),
        "logit_bias": Parameter("logit_bias", _pairs),
        "seed": Parameter("seed", lambda seed: seed % _MAX_SEED),
        "ignore_eos": Parameter("ignore_eos"),
    },
    logprobs=lambda wanted: {"n_probs": max(1, wanted)},
    grammars={
        "json_schema": _schema,
        "json_object": lambda _: {"json_schema": {"type": "object"}},
        "choice": _choices,
    },
    event=LlamaCppEvent,
    adapters=AdapterDialect(
        page="/lora-adapters",
        listed=_listed_adapters,
        select=lambda id: {"lora": [{"id": id, "scale": 1.0}]},
        # Without any, or with an empty list, it applies all those that it was started with.
        base=lambda ids: {"lora": [{"id": id, "scale": 0.0} for id in ids]} if ids else {},
    ),
    slots="/slots",
    seeds=_seeds,
)

LLAMA_CPP_LLGUIDANCE: Final = msgspec.structs.replace(
    LLAMA_CPP,
    name="llama.cpp-llguidance",
    grammars={
        **LLAMA_CPP.grammars,
        "regex": lambda source: _lark(f"start: /{regex_to_lark(source, '')}/"),
        "lark": _lark,
    },
)
"""The same server, built with the library that our engines follow grammars with."""
