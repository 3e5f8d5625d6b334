"""The body of `POST /v1/responses` and of the WebSocket's `response.create`: what is served, what is refused by name.

Text in, text out. A parameter of OpenAI's that would change the answer and is not served here is an error rather than
silently ignored; one that could not change it (`user`, `prompt_cache_key`, ...) is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gateway.errors import InvalidRequest
from gateway.protocol.requests import (
    MAX_TOP_LOGPROBS,
    Message,
    Role,
    SamplingFields,
    TurnRequest,
    invalid_body,
    refuse_unsupported,
)

INCLUDE_LOGPROBS = "message.output_text.logprobs"

Include = Literal[
    "message.output_text.logprobs",
    # The rest asks for parts of items that are never made here, so there is nothing to include.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "access_programs": (),
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "reasoning": ({}, {"effort": "none"}, {"effort": None}, {"effort": None, "summary": None}),
    "service_tier": ("auto", "default"),
    "text": ({}, {"format": {"type": "text"}}, {"format": {"type": "text"}, "verbosity": "medium"}),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
    "truncation": ("disabled",),
}
"""Known, not served: field -> the values that ask for nothing."""


class PromptCacheOptions(Struct):
    """Only `prewarm` matters here: the prefix cache needs no breakpoints."""

    prewarm: bool | None = None


class ResponseCreate(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's parameters, then (inherited) sampling parameters that OpenAI does not have."""

    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    input: str | list[Any] | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    metadata: Metadata | None = None
    previous_response_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    store: bool | None = None
    stream: bool | None = None
    generate: bool | None = None
    include: list[Include] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    # Accepted: they cannot change the answer.
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    stream_options: dict[str, Any] | None = None
    user: str | None = None

    # Refused unless neutral: see `_NEUTRAL`.
    access_programs: Any = None
    background: Any = None
    context_management: Any = None
    conversation: Any = None
    image: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    prompt: Any = None
    reasoning: Any = None
    service_tier: Any = None
    text: Any = None
    tool_choice: Any = None
    tools: Any = None
    truncation: Any = None


def parse_response_create(body: Mapping[str, Any], cache_control: str | None = None) -> tuple[TurnRequest, bool]:
    """The turn that a body asks for, and whether it asks for a stream (which a WebSocket always gives).

    Args:
        body: the decoded object, without the WebSocket's envelope (`type`, `stream_id`).
        cache_control: the HTTP request's `Cache-Control` header.

    Raises:
        InvalidRequest: a parameter is unknown, of the wrong type, out of range or not served; `param` names it.
    """
    try:
        create = msgspec.convert(body, ResponseCreate)
    except msgspec.ValidationError as error:
        raise invalid_body(error) from None
    refuse_unsupported(create, _NEUTRAL)
    messages = _messages(create.input)
    if not messages and create.previous_response_id is None:
        raise InvalidRequest("Missing required parameter: 'input'.", param="input", code="missing_required_parameter")
    prewarm = create.prompt_cache_options is not None and bool(create.prompt_cache_options.prewarm)
    request = TurnRequest(
        model=create.model or "auto",
        messages=messages,
        instructions=create.instructions or None,
        sampling=create.sampling(logprobs=_logprobs(create)),
        max_output_tokens=create.max_output_tokens,
        stop=create.stop_strings(),
        generate=create.generate is not False and not prewarm,
        cache=create.cache_mode(cache_control),
        previous_response_id=create.previous_response_id,
        store=create.store is not False,
        metadata=create.metadata or {},
    )
    return request, bool(create.stream)


def _logprobs(create: ResponseCreate) -> int | None:
    if create.top_logprobs or INCLUDE_LOGPROBS in (create.include or ()):
        return create.top_logprobs or 0
    return None


_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_ITEM_KEYS = {"type", "role", "content", "id", "status", "phase"}
_TEXT_PARTS = ("input_text", "output_text")


def _messages(given: str | list[Any] | None) -> tuple[Message, ...]:
    if given is None:
        return ()
    if isinstance(given, str):
        return (Message("user", given),)
    return tuple(_message(item, f"input[{index}]") for index, item in enumerate(given))


def _message(item: Any, path: str) -> Message:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{path}: expected an object, got {_name(item)}", param=path, code="invalid_value")
    kind = item.get("type", "message")
    if kind != "message":
        raise InvalidRequest(
            f"{path}.type: {_quote(kind)} items are not supported; send messages",
            param=f"{path}.type",
            code="unsupported_parameter",
        )
    for key in item:
        if key not in _ITEM_KEYS:
            raise InvalidRequest(f"Unknown parameter: '{path}.{key}'.", param=f"{path}.{key}", code="unknown_parameter")
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(
            f"{path}.role: {_quote(role)} is not one of {', '.join(_ROLES)}", param=f"{path}.role", code="invalid_value"
        )
    return Message(_ROLES[role], _text(item.get("content"), f"{path}.content"))


def _text(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(
            f"{path}: expected a string or a list of parts, got {_name(content)}", param=path, code="invalid_value"
        )
    return "\n".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{path}: expected an object, got {_name(part)}", param=path, code="invalid_value")
    kind = part.get("type")
    if kind not in _TEXT_PARTS:
        raise InvalidRequest(
            f"{path}.type: {_quote(kind)} parts are not supported; send {' or '.join(_TEXT_PARTS)}",
            param=f"{path}.type",
            code="unsupported_parameter",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(
            f"{path}.text: expected a string, got {_name(text)}", param=f"{path}.text", code="invalid_value"
        )
    return text


def _quote(value: Any) -> str:
    """A client's value in a message, at most 80 characters of it."""
    return repr(value)[:80]


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__
