"""The bodies of `POST /v1/responses`, of the two endpoints below it that make no response, and of the WebSocket's
`response.create`: what is served, what is refused by name.

Text in, text and calls of the client's functions out. A parameter of OpenAI's that would change the answer and is not
served here is an error rather than silently ignored; one that could not change it (`user`, `prompt_cache_key`, ...) is
accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.errors import invalid_value, missing_parameter, unsupported_parameter
from gateway.protocol.caching import NOTHING, Caching
from gateway.protocol.messages import Dialect, parse_messages
from gateway.protocol.output_format import parse_text_config
from gateway.protocol.requests import (
    MAX_TOP_LOGPROBS,
    Message,
    SamplingFields,
    ServiceTier,
    TemplateVariables,
    TurnRequest,
    check_together,
    converted,
    refuse_unsupported,
    template_variables,
)
from gateway.protocol.tools import parse_tools

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
    "background_options": (),
    "context_management": ([],),
    "image": (),
    "moderation": (),
    "prompt": (),
}
"""Known, not served: field -> the values that ask for nothing."""


_ECHOED = ("max_tool_calls", "prompt_cache_key", "reasoning", "safety_identifier", "user")
"""Parameters without effect that OpenAI's responses repeat."""


class PromptCacheOptions(Struct):
    """Only `prewarm` matters here: the prefix cache needs no breakpoints."""

    prewarm: bool | None = None


Id = Annotated[str, Meta(min_length=1, max_length=128)]


class ConversationReference(Struct, forbid_unknown_fields=True):
    """The conversation of a response, where it is no plain id."""

    id: Id


class ResponseCreate(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's parameters, then (inherited) sampling parameters that OpenAI does not have."""

    input: str | list[Any] | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    metadata: Metadata | None = None
    service_tier: ServiceTier | None = None
    previous_response_id: Id | None = None
    conversation: Id | ConversationReference | None = None
    store: bool | None = None
    background: bool | None = None
    generate: bool | None = None
    include: list[Include] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    text: Any = None
    """Output format; see `gateway.protocol.output_format`."""

    parallel_tool_calls: bool | None = None
    tool_choice: Any = None
    tools: Any = None
    """Functions of the client; for this and the next two see `gateway.protocol.tools`."""
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: TemplateVariables | None = None
    """vLLM's: variables for the model's chat template, such as `enable_thinking`."""

    # Accepted: they cannot change the answer.
    client_metadata: dict[str, Any] | None = None
    """What Codex says of itself; no parameter of OpenAI's types."""
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    """Most calls of tools that a server runs itself; there are none."""
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    reasoning: dict[str, Any] | None = None
    """How much a model should reason before it answers; no model here takes an effort."""
    safety_identifier: str | None = None
    stream_options: dict[str, Any] | None = None

    # Refused unless neutral: see `_NEUTRAL`.
    access_programs: Any = None
    background_options: Any = None
    context_management: Any = None
    image: Any = None
    moderation: Any = None
    prompt: Any = None


def parse_response_create(body: Mapping[str, Any], given: Caching = NOTHING) -> tuple[TurnRequest, bool]:
    """Return the turn that a body asks for, and whether it asks for a stream (which a WebSocket always gives).

    Args:
        body: the decoded object, without the WebSocket's envelope (`type`, `stream_id`).
        given: what the HTTP request's headers say about caches.

    Raises:
        InvalidRequest: a parameter is unknown, of the wrong type, out of range or not served; `param` names it.
    """
    create = converted(body, ResponseCreate)
    refuse_unsupported(create, _NEUTRAL)
    conversation = _conversation(create)
    continues = conversation is not None or create.previous_response_id is not None
    messages = _messages(create.input, continues=continues)
    format = parse_text_config(create.text)
    tools = parse_tools(create.tools, create.tool_choice, create.parallel_tool_calls, nested=False)
    check_together(format, tools)
    if not messages and not continues:
        raise missing_parameter("input")
    if create.background and create.store is False:
        raise invalid_value("background", "needs a response that is stored; leave out `store`, or send true")
    prewarm = create.prompt_cache_options is not None and bool(create.prompt_cache_options.prewarm)
    request = create.turn(
        given,
        messages=messages,
        instructions=create.instructions or None,
        sampling=create.sampling(logprobs=_logprobs(create)),
        max_output_tokens=create.max_output_tokens,
        format=format,
        tools=tools,
        template=template_variables(create.chat_template_kwargs),
        generate=create.generate is not False and not prewarm,
        previous_response_id=create.previous_response_id,
        conversation=conversation,
        background=bool(create.background),
        truncate=create.truncation == "auto",
        store=create.store is not False,
        metadata=create.metadata or {},
        service_tier=create.service_tier or "auto",
        echo={
            name: value
            for name in (*_ECHOED, *(() if tools else ("tool_choice", "parallel_tool_calls")))
            if (value := getattr(create, name)) is not None
        },
    )
    return request, bool(create.stream)


def parse_input_tokens(body: Mapping[str, Any]) -> TurnRequest:
    """Return the turn whose prompt is to be counted, from the body of `POST /v1/responses/input_tokens`.

    Raises:
        InvalidRequest: see `parse_response_create`.
    """
    given = dict(body)
    if given.pop("personality", None) is not None:
        raise unsupported_parameter("personality", "not supported by this server. Leave it out.")
    return parse_response_create(given)[0]


class ResponseCompact(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/responses/compact`, with (inherited) sampling parameters for the summary."""

    input: str | list[Any] | None = None
    instructions: str | None = None
    previous_response_id: Id | None = None
    service_tier: ServiceTier | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Most tokens of the summary."""

    # Accepted: they cannot change the answer.
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None

    # Refused.
    image: Any = None


def parse_response_compact(body: Mapping[str, Any], asking: str, given: Caching = NOTHING) -> TurnRequest:
    """Return the turn that summarises a conversation.

    Args:
        asking: what the user would say to get the summary.

    Raises:
        InvalidRequest: see `parse_response_create`.
    """
    compact = converted(body, ResponseCompact)
    refuse_unsupported(compact, {"image": (), "stream": (False,)})
    messages = _messages(compact.input, continues=compact.previous_response_id is not None)
    if not messages and compact.previous_response_id is None:
        raise missing_parameter("input")
    return compact.turn(
        given,
        messages=(*messages, Message("user", asking)),
        instructions=compact.instructions or None,
        sampling=compact.sampling(),
        max_output_tokens=compact.max_output_tokens,
        previous_response_id=compact.previous_response_id,
        service_tier=compact.service_tier or "auto",
        store=False,
    )


def _conversation(create: ResponseCreate) -> str | None:
    given = create.conversation
    if given is not None and create.previous_response_id is not None:
        raise invalid_value("conversation", "cannot be used together with previous_response_id; leave out one of them")
    return given.id if isinstance(given, ConversationReference) else given


def _logprobs(create: ResponseCreate) -> int | None:
    return create.top_logprobs or (0 if INCLUDE_LOGPROBS in (create.include or ()) else None)


ITEMS = Dialect(
    field="input",
    parts=("input_text", "output_text", "refusal"),
    keys=("id", "status", "phase", "created_by"),
    # Clients send calls and their outputs back as they got them, with these set to null.
    unserved=("caller", "namespace", "async"),
    items=True,
)
"""The spelling of items in the Responses API."""


def _messages(given: str | list[Any] | None, *, continues: bool) -> tuple[Message, ...]:
    if given is None:
        return ()
    if isinstance(given, str):
        return (Message("user", given),)
    return parse_messages(given, ITEMS, continues=continues)
