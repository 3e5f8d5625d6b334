"""The body of `POST /v1/chat/completions`: what is served, what is refused by name.

The same rule as for `/v1/responses`: a parameter of OpenAI's that would change the answer and is not served here is an
error; one that could not change it (`user`, `store`, ...) is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from gateway.errors import invalid_value
from gateway.protocol.caching import NOTHING, Caching
from gateway.protocol.choices import ChoicesRequest, CompletionFields, request_choices
from gateway.protocol.messages import Dialect, parse_messages
from gateway.protocol.output_format import Verbosity, one_format, parse_response_format
from gateway.protocol.requests import (
    CONTINUED,
    MAX_TOP_LOGPROBS,
    Message,
    ServiceTier,
    TemplateVariable,
    TemplateVariables,
    check_together,
    converted,
    refuse_unsupported,
    template_variables,
)
from gateway.protocol.response_create import Metadata
from gateway.protocol.tools import parse_tools

Tokens = Annotated[int, Meta(ge=1)]

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "web_search_options": (),
}
"""Known, not served: field -> the values that ask for nothing."""

_DIALECT = Dialect(
    field="messages",
    parts=("text", "refusal"),
    # Who of several users or assistants speaks is no part of chat templates; nor is what another model has thought.
    keys=("name", "reasoning", "reasoning_content"),
    # Clients send answers back as they got them, with all of these set to null.
    unserved=("refusal", "annotations", "audio", "function_call", "tool_calls", "tool_call_id"),
)


class ChatCompletionCreate(CompletionFields, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's parameters, then (inherited) sampling parameters that OpenAI does not have."""

    messages: list[Any]
    max_completion_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    metadata: Metadata | None = None
    service_tier: ServiceTier | None = None
    response_format: Any = None

    parallel_tool_calls: bool | None = None
    tool_choice: Any = None
    tools: Any = None
    """Functions of the client; for this and the next two see `gateway.protocol.tools`."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """vLLM's: whether the answer goes on with the last message, which is the assistant's."""
    chat_template_kwargs: TemplateVariables | None = None
    """vLLM's: variables for the model's chat template, such as `enable_thinking`."""

    # Accepted: they cannot change the answer.
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    reasoning_effort: str | None = None
    safety_identifier: str | None = None
    verbosity: Verbosity | None = None
    store: bool | None = None

    # Refused unless neutral: see `_NEUTRAL`.
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    moderation: Any = None
    prediction: Any = None
    web_search_options: Any = None


def parse_chat_completion_create(body: Mapping[str, Any], given: Caching = NOTHING) -> ChoicesRequest:
    """Return the turns that a body asks for.

    Args:
        body: the decoded object.
        given: what the HTTP request's headers say about caches.

    Raises:
        InvalidRequest: a parameter is missing, unknown, of the wrong type, out of range or not served; `param` names
            it.
    """
    create = converted(body, ChatCompletionCreate)
    refuse_unsupported(create, _NEUTRAL)
    messages = parse_messages(create.messages, _DIALECT)
    if not messages:
        raise invalid_value("messages", "empty; send at least one message")
    format = one_format(parse_response_format(create.response_format), create.format())
    tools = parse_tools(create.tools, create.tool_choice, create.parallel_tool_calls, nested=True)
    check_together(format, tools)
    request = create.turn(
        given,
        messages=messages,
        sampling=create.sampling(logprobs=_logprobs(create)),
        max_output_tokens=_output_limit(create),
        format=format,
        tools=tools,
        template=_template(create, messages[-1]),
        store=False,
        metadata=create.metadata or {},
        service_tier=create.service_tier or "auto",
    )
    return request_choices([request], n=create.n, stream=create.stream, stream_options=create.stream_options)


def _template(create: ChatCompletionCreate, last: Message) -> dict[str, TemplateVariable]:
    variables = template_variables(create.chat_template_kwargs)
    begins = create.add_generation_prompt
    if not create.continue_final_message:
        return variables if begins is None else {**variables, "add_generation_prompt": begins}
    if begins:
        raise invalid_value("continue_final_message", "needs add_generation_prompt=false: the answer is no new message")
    if last.role != "assistant" or last.calls:
        raise invalid_value("continue_final_message", "the last message must be the assistant's, and without calls")
    return variables | CONTINUED


def _logprobs(create: ChatCompletionCreate) -> int | None:
    if create.logprobs:
        return create.top_logprobs or 0
    if create.top_logprobs:
        raise invalid_value("top_logprobs", "needs logprobs=true")
    return None


def _output_limit(create: ChatCompletionCreate) -> int | None:
    """Return the limit of output tokens; `max_tokens` is the older name of `max_completion_tokens`."""
    limits = {create.max_completion_tokens, create.max_tokens} - {None}
    if len(limits) > 1:
        raise invalid_value("max_tokens", "differs from max_completion_tokens; send one of them")
    return limits.pop() if limits else None
