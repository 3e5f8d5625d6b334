"""The dialect of SGLang's server: `/generate`, with a prompt of token ids.

Events hold all tokens so far, or those that are new if the server was started with `--incremental-streaming-output`;
the number of tokens in the event tells which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from engine.wire import FinishReason, TokenIdLogprob
from gateway.upstreams.dialect import (
    AdapterDialect,
    AnswerChunk,
    Parameter,
    TokenDialect,
    TokenId,
    UpstreamError,
    expression_of,
)
from gateway.upstreams.vllm import SAMPLING, describe_models, listed_adapters

_FINISH: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length"}
_Scored = tuple[float | None, TokenId, str | None]
"""Log-probability, token, and its text if that was asked for."""


class _Finish(Struct):
    type: str
    message: str = "it was aborted"
    status_code: int | None = None


class _Meta(Struct):
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: _Finish | None = None
    output_token_logprobs: list[_Scored] = []
    output_top_logprobs: list[list[_Scored] | None] = []


class SglangEvent(Struct):
    """An event of `/generate`."""

    output_ids: list[TokenId] = []
    meta_info: _Meta | None = None
    error: UpstreamError | None = None

    def chunk(self) -> AnswerChunk:
        """See `AnswerEvent`."""
        meta = self.meta_info or _Meta()
        finish, error = meta.finish_reason, self.error
        if finish is not None and finish.type == "abort":
            error = UpstreamError(finish.message, finish.status_code)
        return AnswerChunk(
            tokens=self.output_ids,
            count=meta.completion_tokens,
            logprobs=_logprobs(meta),
            finish=None if finish is None else _FINISH.get(finish.type, "error"),
            cached=meta.cached_tokens,
            error=error,
        )


def _logprobs(meta: _Meta) -> Sequence[TokenIdLogprob]:
    tops = meta.output_top_logprobs or [None] * len(meta.output_token_logprobs)
    return [
        TokenIdLogprob(token, logprob or 0.0, [(other, value or 0.0) for value, other, _ in top or ()])
        for (logprob, token, _), top in zip(meta.output_token_logprobs, tops, strict=True)
    ]


SGLANG: Final = TokenDialect(
    name="sglang",
    generate="/generate",
    health="/health",
    about=("/v1/models",),
    describe=describe_models,
    metrics={
        "running": "sglang:num_running_reqs",
        "waiting": "sglang:num_queue_reqs",
        "prompt_tokens": "sglang:prompt_tokens_total",
        "output_tokens": "sglang:generation_tokens_total",
    },
    prompt="input_ids",
    model=None,
    constants={"stream": True},
    sampling={
        **SAMPLING,
        "max_tokens": Parameter("max_new_tokens"),
        "min_tokens": Parameter("min_new_tokens"),
    },
    ignored=frozenset({"seed"}),
    within="sampling_params",
    logprobs=lambda wanted: {"return_logprob": True, "top_logprobs_num": wanted},
    grammars={
        "json_schema": lambda source: {"json_schema": source},
        "json_object": lambda _: {"json_schema": '{"type": "object"}'},
        "regex": lambda source: {"regex": source},
        "choice": lambda source: {"regex": expression_of(source)},
    },
    salt="extra_key",
    event=SglangEvent,
    adapters=AdapterDialect(
        page="/v1/models",
        listed=listed_adapters,
        select=lambda name: {"lora_path": name},
        load="/load_lora_adapter",
        unload="/unload_lora_adapter",
        remedy="was it started with --enable-lora, a large enough --max-lora-rank and --lora-target-modules all",
    ),
)
