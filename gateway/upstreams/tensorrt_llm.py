"""The dialect of TensorRT-LLM's `trtllm-serve`: `/v1/completions`, with a prompt of token ids and without `detokenize`.

Read from NVIDIA/TensorRT-LLM between versions 1.3 and 1.4: requests in `serve/openai_protocol.py` (0076e939), events in
`serve/postprocess_handlers.py` (01bf1923), pages and cancelling in `serve/openai_server.py` (00057725), sampling in
`docs/source/features/sampling.md` (05ce57bc).
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.wire import TokenIdLogprob
from gateway.upstreams.dialect import AnswerChunk, Parameter, ServerDescription, TokenDialect, expression_of
from gateway.upstreams.vllm import SAMPLING, CompletionChoice, CompletionEvent, ServedModels


class _Logprobs(Struct):
    """Other tokens are told by their text alone, which does not tell which they are."""

    token_logprobs: list[float]


class _Choice(CompletionChoice):
    logprobs: _Logprobs | None = None


class TensorrtLlmEvent(CompletionEvent):
    """An event of TensorRT-LLM's `/v1/completions`."""

    choices: list[_Choice] = msgspec.field(default_factory=list)

    def chunk(self) -> AnswerChunk:
        """See `AnswerEvent`."""
        choice = self.choices[0] if self.choices else _Choice()
        if choice.logprobs is None:
            return self.chunk_of(choice, ())
        scored = zip(choice.token_ids or (), choice.logprobs.token_logprobs, strict=True)
        return self.chunk_of(choice, [TokenIdLogprob(token, logprob) for token, logprob in scored])


def _describe(models: bytes) -> ServerDescription:
    name = msgspec.json.decode(models, type=ServedModels).data[0].id
    return ServerDescription(name, 0, name)


def _format(kind: str, **fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": kind, **fields}}


TENSORRT_LLM: Final = TokenDialect(
    name="tensorrt-llm",
    generate="/v1/completions",
    health="/health",
    about=("/v1/models",),
    describe=_describe,
    # No metrics: what is read at `/metrics` is gone for others, and how many requests run is told when one has ended.
    prompt="prompt",
    model="model",
    constants={
        "stream": True,
        "stream_options": {"include_usage": True},
        "detokenize": False,
        # Otherwise the token that ends an answer would be left out, but not its log-probability.
        "include_stop_str_in_output": True,
    },
    sampling={
        **SAMPLING,
        "top_k": Parameter("top_k"),
        "max_tokens": Parameter("max_tokens"),
        "min_tokens": Parameter("min_tokens"),
        "seed": Parameter("seed", lambda seed: seed % 2**63),
    },
    logprobs=lambda _: {"logprobs": 1},
    most_logprobs=0,
    grammars={
        "json_schema": lambda source: _format("json", schema=json.loads(source)),
        "json_object": lambda _: _format("json_object"),
        "regex": lambda source: _format("regex", regex=source),
        "choice": lambda source: _format("regex", regex=expression_of(source)),
    },
    event=TensorrtLlmEvent,
)
