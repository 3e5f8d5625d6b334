"""OpenAI's `/v1/chat/completions`, and the servers that speak it: any in general, Ollama, Text Generation Inference."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.client.conversation import ChatPromptMessage, ChatTool, TextLogprob
from engine.wire import FinishReason, Grammar
from gateway.upstreams.dialect import Parameter, UpstreamError
from gateway.upstreams.messages.dialect import (
    CallFragment,
    MessageChunk,
    MessageDialect,
    ServerUsage,
    TokenCount,
    ToolDialect,
)

_FINISH: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "content_filter": "stop",
    "length": "length",
    # Text Generation Inference's own.
    "eos_token": "stop",
    "stop_sequence": "stop",
}


class _Logprob(Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[_Logprob] = []

    def read(self) -> TextLogprob:
        spelled = self.token.encode() if self.bytes is None else self.bytes
        return TextLogprob(self.token, tuple(spelled), self.logprob, [each.read() for each in self.top_logprobs])


class _Logprobs(Struct):
    content: list[_Logprob] | None = None


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    function: _Function
    index: int = 0


class _Delta(Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(Struct):
    cached_tokens: TokenCount | None = None


class _Usage(Struct):
    prompt_tokens: TokenCount | None = None
    completion_tokens: TokenCount | None = None
    prompt_tokens_details: _Details | None = None


class _Error(Struct):
    message: str = "it does not say why"
    code: int | str | None = None
    http_status_code: int | None = None


class ChatEvent(Struct):
    """An event of `/v1/chat/completions`; the last one has `usage`, and no choices."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | str | None = None

    def chunk(self) -> MessageChunk:
        """See `MessageEvent`."""
        choice = self.choices[0] if self.choices else _Choice()
        delta, finish = choice.delta, choice.finish_reason
        return MessageChunk(
            text=(delta.content or "") + (delta.refusal or ""),
            reasoning=delta.reasoning_content or delta.reasoning or "",
            calls=[
                CallFragment(call.index, call.function.name or None, call.function.arguments or "")
                for call in delta.tool_calls or ()
            ],
            logprobs=[each.read() for each in (choice.logprobs and choice.logprobs.content) or ()],
            finish=None if finish is None else _FINISH.get(finish, "error"),
            filtered=finish == "content_filter",
            usage=None if self.usage is None else _usage(self.usage),
            error=None if self.error is None else _error(self.error),
        )


def _error(found: _Error | str) -> UpstreamError:
    if isinstance(found, str):
        return UpstreamError(found)
    return UpstreamError(found.message, found.code if found.http_status_code is None else found.http_status_code)


def _usage(found: _Usage) -> ServerUsage:
    details = found.prompt_tokens_details
    return ServerUsage(found.prompt_tokens, details.cached_tokens if details else None, found.completion_tokens)


class _Model(Struct):
    id: str
    root: str | None = None
    meta: dict[str, Any] | None = None


class _Models(Struct):
    data: list[_Model]


def served_models(models: bytes) -> dict[str, str]:
    """Read `/v1/models`."""
    found = msgspec.json.decode(models, type=_Models).data
    return {model.id: json.dumps([model.id, model.root, model.meta], sort_keys=True) for model in found}


def _messages(messages: Sequence[ChatPromptMessage]) -> dict[str, Any]:
    return {"messages": [_message(message) for message in messages]}


def _message(message: ChatPromptMessage) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role}
    if message.content or not message.calls:  # some servers take a message for text if it has any, however short
        written["content"] = message.content
    if message.calls:
        written["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
            for call in message.calls
        ]
    if message.answers is not None:
        written["tool_call_id"] = message.answers
    return written


def _tools(tools: Sequence[ChatTool]) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": _function(tool)} for tool in tools]}


def _function(tool: ChatTool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    strict = {"strict": True} if tool.strict else {}
    return {"name": tool.name, **described, "parameters": tool.parameters, **strict}


def _choice(tools: Sequence[ChatTool], *, must_call: bool, parallel: bool) -> dict[str, Any]:
    return {**_required(tools, must_call=must_call), "parallel_tool_calls": parallel}


def _required(tools: Sequence[ChatTool], *, must_call: bool, parallel: bool = True) -> dict[str, Any]:
    # Not by name, also where there is only one: some servers know no such object, and take it for nothing.
    return {"tool_choice": "required"} if must_call else {}


def _schema(grammar: Grammar) -> dict[str, Any]:
    schema = {"name": "answer", "schema": json.loads(grammar.source), "strict": not grammar.lenient}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _logprobs(wanted: int) -> dict[str, Any]:
    return {"logprobs": True, **({"top_logprobs": wanted} if wanted else {})}


def _biases(biases: Mapping[int, float]) -> dict[str, float]:
    return {str(token): bias for token, bias in biases.items()}


_SAMPLING: Final = {
    "temperature": Parameter("temperature"),
    "top_p": Parameter("top_p"),
    "presence_penalty": Parameter("presence_penalty"),
    "frequency_penalty": Parameter("frequency_penalty"),
    "seed": Parameter("seed", lambda seed: seed % 2**31),
}

OPENAI: Final = MessageDialect(
    name="openai",
    generate="/v1/chat/completions",
    health="/v1/models",
    look=5.0,
    about=("/v1/models",),
    served=served_models,
    messages=_messages,
    constants={"stream": True, "stream_options": {"include_usage": True}},
    max_tokens="max_tokens",
    sampling={**_SAMPLING, "logit_bias": Parameter("logit_bias", _biases)},
    logprobs=_logprobs,
    formats={"json_schema": _schema, "json_object": lambda _: {"response_format": {"type": "json_object"}}},
    tools=ToolDialect(tools=_tools, choice=_choice, strict=True),
    event=ChatEvent,
)
"""Any server that is compatible with OpenAI's."""

OLLAMA: Final = msgspec.structs.replace(
    OPENAI,
    name="ollama",
    health="/api/version",
    look=1.0,
    is_listed=lambda name, listed: listed in (name, f"{name}:latest"),
    sampling=_SAMPLING,
    # It ignores the fields that it does not know.
    tools=ToolDialect(tools=_tools, choice=_required, must_call=False, one_call=False),
)
"""Ollama's `/v1`."""

TGI: Final = msgspec.structs.replace(
    OPENAI,
    name="tgi",
    health="/health",
    look=1.0,
    metrics={"running": "tgi_batch_current_size", "waiting": "tgi_queue_size"},
    # Any other name is taken for an adapter's.
    constants={**OPENAI.constants, "model": "tgi"},
    sampling={name: _SAMPLING[name] for name in ("temperature", "top_p", "frequency_penalty", "seed")},
    # Its top_p lies below 1.
    neutral={"top_p": 1.0},
    most_logprobs=5,
    formats={
        "json_schema": _schema,
        "json_object": lambda _: {"response_format": {"type": "json_object", "value": {"type": "object"}}},
        "regex": lambda grammar: {"response_format": {"type": "regex", "value": grammar.source}},
    },
    tools=ToolDialect(tools=_tools, choice=_required, with_format=False),
)
"""Text Generation Inference. It holds an answer with functions to a grammar of one call, or of none."""
