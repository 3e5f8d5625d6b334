"""Anthropic's `/v1/messages`, and the servers that speak it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.client.conversation import ChatPromptMessage, ChatTool
from engine.wire import FinishReason
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
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "refusal": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
_STATUS: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "overloaded_error": 529,
}


class _Block(Struct):
    type: str = ""
    name: str | None = None
    text: str = ""


class _Delta(Struct):
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _Usage(Struct):
    input_tokens: TokenCount | None = None
    cache_read_input_tokens: TokenCount | None = None
    cache_creation_input_tokens: TokenCount | None = None
    output_tokens: TokenCount | None = None


class _Message(Struct):
    usage: _Usage | None = None


class _Error(Struct):
    type: str = ""
    message: str = "it does not say why"


class MessagesEvent(Struct):
    """An event of `/v1/messages`."""

    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: _Error | None = None

    def chunk(self) -> MessageChunk:
        """See `MessageEvent`."""
        delta, block = self.delta or _Delta(), self.content_block or _Block()
        name = block.name if block.type == "tool_use" else None
        calls = [CallFragment(self.index, name, delta.partial_json)] if name or delta.partial_json else []
        finish = delta.stop_reason
        began = self.message.usage if self.message else None
        return MessageChunk(
            text=block.text + delta.text,
            reasoning=delta.thinking,
            calls=calls,
            finish=None if finish is None else _FINISH.get(finish, "error"),
            filtered=finish == "refusal",
            usage=_prompt_usage(began) if began else _usage(self.usage) if self.usage else None,
            error=UpstreamError(self.error.message, _STATUS.get(self.error.type)) if self.error else None,
        )


def _prompt_usage(found: _Usage) -> ServerUsage:
    """Return what a message begins with: of its output nothing is known there."""
    return msgspec.structs.replace(_usage(found), output_tokens=None)


def _usage(found: _Usage) -> ServerUsage:
    cached = found.cache_read_input_tokens
    prompt = found.input_tokens
    if prompt is not None:  # which leaves out what was read from the cache or written to it
        prompt += (cached or 0) + (found.cache_creation_input_tokens or 0)
    return ServerUsage(prompt, cached, found.output_tokens)


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


def _served(models: bytes) -> dict[str, str]:
    return {model.id: model.id for model in msgspec.json.decode(models, type=_Models).data}


def _is_listed(name: str, listed: str) -> bool:
    """Whether a listed model is that of a name, which may leave out its date."""
    return listed == name or re.fullmatch(re.escape(name) + r"-\d{8}", listed) is not None


def _messages(messages: Sequence[ChatPromptMessage]) -> dict[str, Any]:
    system = "\n\n".join(message.content for message in messages if message.role == "system")
    written: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = [] if message.role == "system" else [*_blocks(message)]
        if blocks and written and written[-1]["role"] == role:
            written[-1]["content"] += blocks  # all outputs of an answer's calls have to be in one message
        elif blocks:
            written.append({"role": role, "content": blocks})
    return {"messages": written, **({"system": system} if system else {})}


def _blocks(message: ChatPromptMessage) -> Iterator[dict[str, Any]]:
    if message.answers is not None:
        yield {"type": "tool_result", "tool_use_id": message.answers, "content": message.content}
    elif message.content:  # an empty text is refused
        yield {"type": "text", "text": message.content}
    for call in message.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call.arguments)}


def _object(arguments: str) -> dict[str, Any]:
    """Return a call's arguments; none if they were cut off."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _tools(tools: Sequence[ChatTool]) -> dict[str, Any]:
    return {"tools": [_tool(tool) for tool in tools]}


def _tool(tool: ChatTool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    return {"name": tool.name, **described, "input_schema": tool.parameters}


def _choice(tools: Sequence[ChatTool], *, must_call: bool, parallel: bool) -> dict[str, Any]:
    if not must_call:
        choice: dict[str, Any] = {"type": "auto"}
    elif len(tools) == 1:
        choice = {"type": "tool", "name": tools[0].name}
    else:
        choice = {"type": "any"}
    return {"tool_choice": choice if parallel else {**choice, "disable_parallel_tool_use": True}}


ANTHROPIC: Final = MessageDialect(
    name="anthropic",
    generate="/v1/messages",
    health="/v1/models",
    look=30.0,
    about=("/v1/models?limit=1000",),
    authorization=lambda key: {"x-api-key": key},
    headers={"anthropic-version": "2023-06-01"},
    served=_served,
    is_listed=_is_listed,
    messages=_messages,
    constants={"stream": True},
    max_tokens="max_tokens",
    sampling={
        "temperature": Parameter("temperature"),
        "top_p": Parameter("top_p"),
        "top_k": Parameter("top_k"),
    },
    # Newer models take one of them at most.
    neutral={"temperature": 1.0, "top_p": 1.0},
    ignored=frozenset({"seed"}),
    logprobs=None,
    formats={},
    tools=ToolDialect(tools=_tools, choice=_choice),
    event=MessagesEvent,
)
