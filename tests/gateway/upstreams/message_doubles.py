"""Doubles of servers that answer conversations: their HTTP protocols, read from their sources, around an engine of
ours, which stands in for their models.

They refuse fields that the servers do not have. Ollama's is `openai/openai.go` and `middleware/openai.go` of the main
branch of August 2026, Text Generation Inference's `router/src/lib.rs`, `chat.rs` and `server.rs` of its last one.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from engine.client.engine_client import EngineClient
from engine.client.generation import Generation, RequestInvalid
from engine.text.processor import TextProcessor
from engine.wire import Grammar, SamplingParams

MODEL = "org/tiny"


class OllamaRequest(Struct, forbid_unknown_fields=True):
    """Fields of Ollama's `/v1/chat/completions` that a gateway may send."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool
    stream_options: dict[str, bool]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] = []
    logprobs: bool = False
    top_logprobs: int = 0


class TgiRequest(Struct, forbid_unknown_fields=True):
    """Fields of Text Generation Inference's that a gateway may send."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool
    stream_options: dict[str, bool]
    max_tokens: int
    temperature: float
    seed: int
    top_p: float | None = None
    frequency_penalty: float = 0.0
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: Any = "auto"
    logprobs: bool = False
    top_logprobs: int = 0


class MessageDouble(ABC):
    """What the doubles share: an engine, its tokenizer, and how many requests run."""

    asked: type[OllamaRequest] | type[TgiRequest]

    def __init__(self, engine: EngineClient, text: TextProcessor) -> None:
        self._engine = engine
        self._text = text
        self.running = 0

    @property
    @abstractmethod
    def app(self) -> Starlette:
        """The server."""

    @abstractmethod
    def refusal(self, message: str) -> Response:
        """Return the answer to a request that makes no sense."""

    @abstractmethod
    def events(self, generation: Generation, tool: str | None, *, scored: bool) -> AsyncIterator[dict[str, Any]]:
        """Return the events of an answer, which are the arguments of a call if there is a tool."""

    async def health(self, _: Request) -> Response:
        return Response()

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1}]})

    async def complete(self, request: Request) -> Response:
        try:
            asked = msgspec.json.decode(await request.body(), type=self.asked)
            prompt = self._text.encode_chat([_template_message(message) for message in asked.messages])
        except (msgspec.ValidationError, ValueError) as error:
            return self.refusal(str(error))
        tool = asked.tools[0]["function"] if asked.tools else None
        grammar = _grammar(asked.response_format)
        if tool is not None:
            grammar = Grammar("json_schema", json.dumps(tool["parameters"]))
        sampling = SamplingParams(
            max_tokens=asked.max_tokens,
            temperature=asked.temperature,
            top_p=1.0 if asked.top_p is None else asked.top_p,
            frequency_penalty=asked.frequency_penalty,
            seed=asked.seed,
            logprobs=asked.top_logprobs if asked.logprobs else None,
            ignore_eos=grammar is None,  # the model that stands in means nothing by it
        )
        generation = self._engine.generate(prompt, sampling, text=self._text, grammar=grammar)
        try:
            await generation.accepted()
        except RequestInvalid as error:
            return self.refusal(str(error))
        said = self.events(generation, tool and tool["name"], scored=asked.logprobs)
        return StreamingResponse(self._stream(generation, said), media_type="text/event-stream")

    async def _stream(self, generation: Generation, events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
        self.running += 1
        try:
            async with generation:
                async for event in events:
                    yield f"data: {json.dumps({'id': 'chatcmpl-1', 'model': MODEL, **event})}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self.running -= 1

    def _logprob(self, token: int, value: float, top: list[tuple[int, float]]) -> dict[str, Any]:
        spelled = self._text.token_bytes(token)
        others = [self._logprob(other, value, []) for other, value in top]
        entry = {"token": spelled.decode(errors="replace"), "logprob": value, "bytes": [*spelled]}
        return {**entry, **({"top_logprobs": others} if others else {})}

    def _scores(self, delta_logprobs: Any) -> dict[str, Any]:
        entries = [self._logprob(each.token, each.logprob, each.top) for each in delta_logprobs or ()]
        return {"logprobs": {"content": entries}}


class Ollama(MessageDouble):
    """Ollama's. It sends a call in one piece."""

    asked = OllamaRequest

    @property
    def app(self) -> Starlette:
        routes = [
            Route("/api/version", self.health),
            Route("/v1/models", self.models),
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    def refusal(self, message: str) -> Response:
        return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, 400)

    async def events(self, generation: Generation, tool: str | None, *, scored: bool) -> AsyncIterator[dict[str, Any]]:
        role, arguments = {"role": "assistant"}, ""
        async for delta in generation:
            if tool is not None:
                arguments += delta.text
                continue
            scores = self._scores(delta.logprobs) if scored else {}
            yield {"choices": [{"index": 0, "delta": {**role, "content": delta.text}, "finish_reason": None, **scores}]}
            role = {}
        if tool is not None:
            call = {"id": "call_1", "index": 0, "type": "function", "function": {"name": tool, "arguments": arguments}}
            yield {"choices": [{"index": 0, "delta": {**role, "content": "", "tool_calls": [call]}}]}
        finish = "tool_calls" if tool is not None else generation.result.finish_reason
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        yield {"choices": [], "usage": _usage(generation)}


class Tgi(MessageDouble):
    """Text Generation Inference's. It names the function in a call's first piece only."""

    asked = TgiRequest

    @property
    def app(self) -> Starlette:
        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/metrics", self.metrics),
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    def refusal(self, message: str) -> Response:
        return JSONResponse({"error": message, "error_type": "validation"}, 422)

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(
            f"# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size {self.running}\n"
            "# TYPE tgi_queue_size gauge\ntgi_queue_size 2\n"
        )

    async def events(self, generation: Generation, tool: str | None, *, scored: bool) -> AsyncIterator[dict[str, Any]]:
        name = tool
        async for delta in generation:
            said: dict[str, Any] = {"role": "assistant", "content": delta.text}
            if tool is not None:
                function = {"name": name, "arguments": delta.text}
                call = {"index": 0, "id": "0", "type": "function", "function": function}
                said, name = {"role": "assistant", "tool_calls": [call]}, None
            scores = self._scores(delta.logprobs) if scored else {}
            yield {"choices": [{"index": 0, "delta": said, "finish_reason": None, **scores}], "usage": None}
        end = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        yield {"choices": [{**end, "finish_reason": generation.result.finish_reason}], "usage": None}
        yield {"choices": [], "usage": _usage(generation)}


def _usage(generation: Generation) -> dict[str, int]:
    usage = generation.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


def _template_message(message: dict[str, Any]) -> dict[str, Any]:
    return {"role": message["role"], "content": message.get("content") or json.dumps(message.get("tool_calls"))}


def _grammar(format: dict[str, Any] | None) -> Grammar | None:
    match format:
        case None:
            return None
        case {"type": "json_schema", "json_schema": {"schema": schema}} | {"type": "json_object", "value": schema}:
            return Grammar("json_schema", json.dumps(schema))
        case {"type": "json_object"}:
            return Grammar("json_object", "")
        case {"type": "regex", "value": pattern}:
            return Grammar("regex", pattern)
        case _:
            raise ValueError(f"no such response_format: {format}")
