"""Doubles of servers that need a GPU: their HTTP protocols, read from their sources, around an engine of ours.

They refuse fields that the servers do not have. vLLM's is `vllm/entrypoints/openai/completion/` of the main branch in
November 2026, SGLang's `python/sglang/srt/managers/io_struct.py` and `tokenizer_manager.py`. Adapters are loaded and
unloaded as `vllm/entrypoints/openai/models/serving.py` and `tokenizer_control_mixin.py` do it; their names are counted
with each request, but the answers are the base model's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import uvicorn
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from engine.client.answer_stream import Delta
from engine.client.engine_client import EngineClient
from engine.client.generation import Generation, RequestInvalid
from engine.client.upstream import Upstream
from engine.wire import Grammar, SamplingParams, TokenIdLogprob

MODEL = "org/tiny"
EOS = 2

_Client = TypeVar("_Client", bound=Upstream)


class Sampling(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields that both servers call the same, which a gateway always sends, but for biases."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    ignore_eos: bool
    logit_bias: dict[str, float] = {}

    def params(self, max_tokens: int, min_tokens: int, logprobs: int | None, seed: int = 0) -> SamplingParams:
        """Return what an engine of ours is asked."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=max(0, self.top_k),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={int(token): bias for token, bias in self.logit_bias.items()},
            seed=seed,
            logprobs=logprobs,
            ignore_eos=self.ignore_eos,
            min_tokens=min_tokens,
        )


class VllmRequest(Sampling, kw_only=True):
    """Fields of `/v1/completions` that a gateway may send."""

    model: str
    prompt: list[int]
    stream: bool
    stream_options: dict[str, bool]
    return_token_ids: bool
    max_tokens: int
    seed: int
    min_tokens: int = 0
    logprobs: int | None = None
    return_tokens_as_token_ids: bool = False
    structured_outputs: dict[str, Any] | None = None
    cache_salt: str | None = None


class SglangSampling(Sampling, kw_only=True):
    """Fields of `sampling_params`."""

    max_new_tokens: int
    min_new_tokens: int = 0
    json_schema: str | None = None
    regex: str | None = None


class SglangRequest(Struct, forbid_unknown_fields=True):
    """Fields of `/generate` that a gateway may send."""

    input_ids: list[int]
    sampling_params: SglangSampling
    stream: bool
    return_logprob: bool = False
    top_logprobs_num: int = 0
    extra_key: str | None = None
    lora_path: str | None = None


class Loading(Struct, forbid_unknown_fields=True):
    """Fields of a command that loads an adapter."""

    lora_name: str
    lora_path: str


class Unloading(Struct, forbid_unknown_fields=True):
    lora_name: str


async def token_by_token(generation: Generation) -> AsyncIterator[Delta]:
    """Give one token at a time, as such servers do, also of a delta that holds what came while nobody looked."""
    async for delta in generation:
        scores = delta.logprobs or [None] * len(delta.token_ids)
        for token, score in zip(delta.token_ids, scores, strict=True):
            yield Delta("", [token], None if score is None else [score])


class Double:
    """What the doubles share: an engine, and how many requests run."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self.running = 0
        self.salts: set[str | None] = set()
        self.adapters: dict[str, str] = {}
        """Paths of loaded adapters by name; answers are the base model's all the same."""
        self.commands: list[tuple[str, str]] = []
        """What was loaded and unloaded, with the name."""
        self.served: list[str | None] = []
        """Adapters that requests have asked for."""
        self.lacking = ""
        """Part of the paths at which it finds no adapter."""

    @property
    def _context(self) -> int:
        assert self._engine.info is not None
        return self._engine.info.context

    async def health(self, _: Request) -> Response:
        return Response()

    async def models(self, _: Request) -> Response:
        base = {"id": MODEL, "root": "/models/tiny", "parent": None, "max_model_len": self._context}
        others = [
            {"id": name, "root": path, "parent": MODEL, "max_model_len": None} for name, path in self.adapters.items()
        ]
        return JSONResponse({"data": [base, *others]})

    async def load(self, request: Request) -> Response:
        asked = msgspec.json.decode(await request.body(), type=Loading)
        if asked.lora_name in self.adapters:
            return self.said(400, f"the adapter {asked.lora_name} has already been loaded")
        if self.lacking and self.lacking in asked.lora_path:
            return self.said(self.not_found, f"no adapter found for {asked.lora_path}")
        self.commands.append(("load", asked.lora_name))
        self.adapters[asked.lora_name] = asked.lora_path
        return self.said(200, "")

    async def unload(self, request: Request) -> Response:
        asked = msgspec.json.decode(await request.body(), type=Unloading)
        if self.adapters.pop(asked.lora_name, None) is None:
            return self.said(self.not_found, f"the adapter {asked.lora_name} cannot be found")
        self.commands.append(("unload", asked.lora_name))
        return self.said(200, "")

    not_found = 404
    """Status for an adapter that is not there."""

    def said(self, status: int, message: str) -> Response:
        """Answer a command, or refuse a request."""
        return JSONResponse({"error": {"message": message, "code": status}} if message else "done", status)

    def refuse(self, message: str) -> Response:
        """Refuse a request."""
        return JSONResponse({"error": {"message": message, "code": 400}}, 400)

    async def stream(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        grammar: Grammar | None,
        write: Callable[..., AsyncIterator[str]],
    ) -> Response:
        """Answer with the events that `write` makes of a generation, or with 400."""
        generation = self._engine.generate(prompt, sampling, grammar=grammar)
        try:
            await generation.accepted()
        except RequestInvalid as error:
            return self.refuse(str(error))

        async def events() -> AsyncIterator[str]:
            self.running += 1
            try:
                async with generation:
                    async for event in write(generation):
                        yield event
                        await asyncio.sleep(0)  # what is ready at once still comes one after the other
            finally:
                self.running -= 1

        return StreamingResponse(events(), media_type="text/event-stream")


class Vllm(Double):
    """vLLM's completions."""

    dialect = "vllm"

    @property
    def app(self) -> Starlette:
        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/metrics", self.metrics),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/load_lora_adapter", self.load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", self.unload, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def metrics(self, _: Request) -> Response:
        labels = f'{{engine="0",model_name="{MODEL}"}}'
        return PlainTextResponse(
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{labels} {float(self.running)}\n"
            f"vllm:num_requests_waiting{labels} 3.0\n"
        )

    async def complete(self, request: Request) -> Response:
        try:
            asked = msgspec.json.decode(await request.body(), type=VllmRequest)
        except msgspec.ValidationError as error:
            return JSONResponse({"error": {"message": str(error), "code": 400}}, 400)
        if asked.model != MODEL and asked.model not in self.adapters:
            return self.said(404, f"The model `{asked.model}` does not exist.")
        self.served.append(None if asked.model == MODEL else asked.model)
        self.salts.add(asked.cache_salt)
        sampling = asked.params(asked.max_tokens, asked.min_tokens, asked.logprobs, asked.seed)
        grammar = None
        if asked.structured_outputs is not None:
            [(kind, value)] = asked.structured_outputs.items()
            grammar = Grammar(
                "json_schema" if kind == "json" else kind, value if kind == "regex" else json.dumps(value)
            )
        return await self.stream(asked.prompt, sampling, grammar, self._events)

    async def _events(self, generation: Generation) -> AsyncIterator[str]:
        async for delta in token_by_token(generation):
            yield self._chunk(delta.token_ids, None, delta.logprobs)
        finish = generation.result.finish_reason
        scored = generation.request.sampling.logprobs is not None
        end = [EOS] if finish == "stop" else []
        yield self._chunk(end, finish, [TokenIdLogprob(EOS, -0.5) for _ in end] if scored else None)
        usage = {"prompt_tokens_details": {"cached_tokens": generation.usage.cached_tokens}}
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"

    def _chunk(self, tokens: list[int], finish: str | None, logprobs: list[TokenIdLogprob] | None) -> str:
        scores = None
        if logprobs:
            scores = {
                "tokens": [f"token_id:{each.token}" for each in logprobs],
                "token_logprobs": [each.logprob for each in logprobs],
                "top_logprobs": [{f"token_id:{id}": value for id, value in each.top} for each in logprobs],
                "text_offset": [0] * len(logprobs),
            }
        choice = {"index": 0, "text": "", "logprobs": scores, "finish_reason": finish, "token_ids": tokens}
        return f"data: {json.dumps({'id': 'cmpl-1', 'model': MODEL, 'choices': [choice]})}\n\n"


class Sglang(Double):
    """SGLang's generation, whose events hold all tokens so far."""

    dialect = "sglang"
    incremental = False
    """Whether they hold new tokens only, as with `--incremental-streaming-output`."""

    @property
    def app(self) -> Starlette:
        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/generate", self.generate, methods=["POST"]),
            Route("/load_lora_adapter", self.load, methods=["POST"]),
            Route("/unload_lora_adapter", self.unload, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    not_found = 400

    def said(self, status: int, message: str) -> Response:
        """See `Double`."""
        body = {"success": not message, "error_message": message, "loaded_adapters": self.adapters}
        return JSONResponse(body, status)

    async def generate(self, request: Request) -> Response:
        try:
            asked = msgspec.json.decode(await request.body(), type=SglangRequest)
        except msgspec.ValidationError as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        if asked.lora_path is not None and asked.lora_path not in self.adapters:
            message = f"The following requested LoRA adapters are not loaded: {asked.lora_path}"
            return JSONResponse({"error": {"message": message}}, 400)
        self.served.append(asked.lora_path)
        self.salts.add(asked.extra_key)
        found = asked.sampling_params
        logprobs = asked.top_logprobs_num if asked.return_logprob else None
        sampling = found.params(found.max_new_tokens, found.min_new_tokens, logprobs)
        grammar = None
        if found.json_schema is not None:
            grammar = Grammar("json_schema", found.json_schema)
        elif found.regex is not None:
            grammar = Grammar("regex", found.regex)
        return await self.stream(asked.input_ids, sampling, grammar, self._events)

    async def _events(self, generation: Generation) -> AsyncIterator[str]:
        tokens: list[int] = []
        scores: list[TokenIdLogprob] = []

        def event(delta: Delta, finish: dict[str, Any] | None) -> str:
            tokens.extend(delta.token_ids)
            scores.extend(delta.logprobs or ())
            shown, scored = (delta.token_ids, delta.logprobs or ()) if self.incremental else (tokens, scores)
            meta = {
                "id": "1",
                "finish_reason": finish,
                "prompt_tokens": len(generation.request.prompt),
                "completion_tokens": len(tokens),
                "cached_tokens": generation.usage.cached_tokens,
            }
            if generation.request.sampling.logprobs is not None:
                meta |= _scores(scored)
            return f"data: {json.dumps({'text': '', 'output_ids': shown, 'meta_info': meta})}\n\n"

        async for delta in token_by_token(generation):
            yield event(delta, None)
        if generation.result.finish_reason == "stop":
            yield event(Delta("", [EOS], [TokenIdLogprob(EOS, -0.5)]), {"type": "stop", "matched": EOS})
        else:
            yield event(Delta("", []), {"type": "length", "length": len(tokens)})
        yield "data: [DONE]\n\n"


def _scores(scored: Sequence[TokenIdLogprob]) -> dict[str, Any]:
    return {
        "output_token_logprobs": [[each.logprob, each.token, None] for each in scored],
        "output_top_logprobs": [[[value, id, None] for id, value in each.top] or None for each in scored],
    }


@contextlib.asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[str]:
    """Serve an application at a port of this machine; gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@contextlib.asynccontextmanager
async def started(client: _Client) -> AsyncIterator[_Client]:
    """Run the client of a server."""
    await client.start()
    try:
        yield client
    finally:
        await client.aclose()
