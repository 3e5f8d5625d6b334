"""Doubles of NVIDIA's servers, as `doubles`: their HTTP protocols, read from the sources that their dialects name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.client.generation import Generation
from engine.wire import Grammar, TokenIdLogprob
from tests.gateway.upstreams.doubles import EOS, MODEL, Double, Sampling, token_by_token


class TensorrtLlmRequest(Sampling, kw_only=True):
    """Fields of `/v1/completions` that a gateway may send."""

    model: str
    prompt: list[int]
    stream: bool
    stream_options: dict[str, bool]
    detokenize: bool
    include_stop_str_in_output: bool
    max_tokens: int
    seed: int
    min_tokens: int = 0
    logprobs: int | None = None
    response_format: dict[str, Any] | None = None


class TensorrtLlm(Double):
    """The completions of `trtllm-serve`, which takes any name of a model."""

    dialect = "tensorrt-llm"

    @property
    def app(self) -> Starlette:
        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/v1/completions", self.complete, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def models(self, _: Request) -> Response:
        card = {"id": MODEL, "object": "model", "created": 1_764_000_000, "owned_by": "tensorrt_llm"}
        return JSONResponse({"object": "list", "data": [card]})

    def refuse(self, message: str) -> Response:
        """See `Double`."""
        body = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
        return JSONResponse(body, 400)

    async def complete(self, request: Request) -> Response:
        try:
            asked = msgspec.json.decode(await request.body(), type=TensorrtLlmRequest)
        except msgspec.ValidationError as error:
            return JSONResponse({"error": str(error)}, 400)
        # Without a number there are none; the one that is chosen comes in any case.
        logprobs = asked.logprobs or None
        sampling = asked.params(asked.max_tokens, asked.min_tokens, logprobs, asked.seed)
        return await self.stream(asked.prompt, sampling, _grammar(asked.response_format), self._events)

    async def _events(self, generation: Generation) -> AsyncIterator[str]:
        scored = generation.request.sampling.logprobs is not None
        async for delta in token_by_token(generation):
            yield self._event(_choice(delta.token_ids, delta.logprobs or () if scored else None))
        finish = generation.result.finish_reason
        end = [EOS] if finish == "stop" else []
        yield self._event(_choice(end, [TokenIdLogprob(EOS, -0.5)] * len(end) if scored else None, finish))
        found = generation.usage
        usage = {
            "prompt_tokens": found.prompt_tokens,
            "completion_tokens": found.output_tokens,
            "total_tokens": found.prompt_tokens + found.output_tokens,
            "prompt_tokens_details": {"cached_tokens": found.cached_tokens},
        }
        yield self._event(usage=usage)
        yield "data: [DONE]\n\n"

    def _event(self, *choices: dict[str, Any], usage: dict[str, Any] | None = None) -> str:
        event = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL}
        return f"data: {json.dumps({**event, 'choices': choices, 'usage': usage})}\n\n"


def _choice(tokens: list[int], logprobs: Sequence[TokenIdLogprob] | None, finish: str | None = None) -> dict[str, Any]:
    """Return an answer in an event. Log-probabilities are those of texts: here all tokens have the same."""
    scores = (
        None
        if logprobs is None
        else {
            "text_offset": [0] * len(logprobs),
            "token_logprobs": [each.logprob for each in logprobs],
            "tokens": ["\ufffd"] * len(logprobs),
            "top_logprobs": [{"\ufffd": each.logprob} for each in logprobs],
        }
    )
    return {
        "index": 0,
        "text": "",
        "token_ids": tokens,
        "logprobs": scores,
        "finish_reason": finish,
        "stop_reason": None,
        "avg_decoded_tokens_per_iter": None,
    }


def _grammar(asked: dict[str, Any] | None) -> Grammar | None:
    if asked is None:
        return None
    if asked["type"] == "regex":
        return Grammar("regex", asked["regex"])
    assert asked["type"] in ("json", "json_object")
    return Grammar("json_schema", json.dumps(asked.get("schema", {"type": "object"})))
