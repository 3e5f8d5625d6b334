"""The bodies of `POST /v1/messages` and `/v1/messages/count_tokens`: what is served, what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from engine.wire import Grammar
from gateway.errors import invalid_value
from gateway.protocol.anthropic.conversation import parse_conversation
from gateway.protocol.anthropic.tools import parse_anthropic_tools
from gateway.protocol.caching import NOTHING, Caching
from gateway.protocol.choices import ChoicesRequest, request_choices
from gateway.protocol.output_format import OutputFormat, checked_schema
from gateway.protocol.requests import (
    MAX_STOP_STRINGS,
    SamplingFields,
    TurnRequest,
    check_together,
    continued,
    converted,
    refuse_unsupported,
)

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
StopSequence = Annotated[str, Meta(min_length=1, max_length=256)]

_NEUTRAL: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],)}
"""Known, not served: field -> the values that ask for nothing."""


class JsonSchemaFormat(Struct, forbid_unknown_fields=True):
    """The `output_config.format` of a body."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, forbid_unknown_fields=True):
    """The `output_config` of a body."""

    effort: str | None = None
    """Accepted: no model here has levels of effort."""
    format: JsonSchemaFormat | None = None


class MessageCount(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """What a prompt is made of, then (inherited) sampling parameters, of which Anthropic has some."""

    model: ModelName
    messages: list[Any]
    system: Any = None
    tools: Any = None
    tool_choice: Any = None
    output_config: OutputConfig | None = None
    stop: Annotated[list[StopSequence], Meta(max_length=MAX_STOP_STRINGS)] | None = field(
        name="stop_sequences", default=None
    )

    # Accepted: no model here thinks apart, prompts are cached by themselves, and the rest cannot change the answer.
    cache_control: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: str | None = None
    thinking: dict[str, Any] | None = None

    # Refused unless neutral: see `_NEUTRAL`.
    container: Any = None
    mcp_servers: Any = None


class MessageCreate(MessageCount, kw_only=True, forbid_unknown_fields=True):
    """The same with the answer's greatest length, which Anthropic demands."""

    max_tokens: Annotated[int, Meta(ge=1)]


def parse_message_create(body: Mapping[str, Any], given: Caching = NOTHING) -> ChoicesRequest:
    """Return the turn that a body asks for.

    Args:
        body: the decoded object.
        given: what the HTTP request's headers say about caches.

    Raises:
        InvalidRequest: a parameter is missing, unknown, of the wrong type, out of range or not served.
    """
    create = converted(body, MessageCreate)
    request = _turn(create, given, create.max_tokens)
    return request_choices([request], n=1, stream=create.stream, stream_options=None)


def parse_message_count(body: Mapping[str, Any]) -> TurnRequest:
    """Return the turn whose prompt is to be counted.

    Raises:
        InvalidRequest: as of `parse_message_create`.
    """
    return _turn(converted(body, MessageCount), NOTHING, None)


def _turn(create: MessageCount, given: Caching, max_tokens: int | None) -> TurnRequest:
    refuse_unsupported(create, _NEUTRAL)
    messages = parse_conversation(create.system, create.messages)
    if messages[-1].calls:
        raise invalid_value("messages", "the conversation must not end with a tool_use; send its tool_result")
    tools = parse_anthropic_tools(create.tools, create.tool_choice)
    format = _format(create.output_config)
    check_together(format, tools)
    return create.turn(
        given,
        messages=messages,
        sampling=create.sampling(),
        max_output_tokens=max_tokens,
        format=format,
        tools=tools,
        template=continued(messages),
        store=False,
    )


def _format(config: OutputConfig | None) -> OutputFormat | None:
    if config is None or config.format is None:
        return None
    path = "output_config.format.schema"
    schema = config.format.schema
    shown = {"type": "json_schema", "name": "output", "schema": schema}
    return OutputFormat(Grammar("json_schema", checked_schema(schema, path)), path, shown)
