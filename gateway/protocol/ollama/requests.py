"""The bodies of Ollama's `POST /api/chat`, `/api/generate`, `/api/embed` and `/api/embeddings`: what is served, what is
refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from engine.wire import Grammar
from gateway.errors import invalid_value, unsupported_parameter
from gateway.protocol.caching import NOTHING, Caching
from gateway.protocol.choices import ChoicesRequest, request_choices
from gateway.protocol.embedding_create import EmbeddingRequest, checked_texts
from gateway.protocol.output_format import OutputFormat, checked_name, checked_schema, checked_type
from gateway.protocol.requests import (
    Message,
    SamplingFields,
    ToolCall,
    check_together,
    continued,
    converted,
    refuse_unsupported,
)
from gateway.protocol.tools import parse_tools

_ROLES = ("system", "user", "assistant", "tool")

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "context": ([],),
    "images": ([],),
    "logprobs": (False,),
    "suffix": ("",),
    "template": ("",),
    "top_logprobs": (0,),
}
"""Known, not served: field -> the values that ask for nothing."""

_NEUTRAL_OPTIONS: dict[str, tuple[Any, ...]] = {"mirostat": (0,), "tfs_z": (1,), "typical_p": (1,)}


class OllamaOptions(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The `options` of a body."""

    num_predict: Annotated[int, Meta(ge=-2)] | None = None
    """Most tokens of the answer; below 0 as many as fit."""

    # Accepted: how a model is loaded is the operator's to say, and the rest belongs to what is refused below.
    f16_kv: Any = None
    low_vram: Any = None
    main_gpu: Any = None
    mirostat_eta: Any = None
    mirostat_tau: Any = None
    num_batch: Any = None
    num_ctx: Any = None
    num_gpu: Any = None
    num_keep: Any = None
    num_thread: Any = None
    numa: Any = None
    penalize_newline: Any = None
    repeat_last_n: Any = None
    use_mlock: Any = None
    use_mmap: Any = None

    # Refused unless neutral: see `_NEUTRAL_OPTIONS`.
    mirostat: Any = None
    tfs_z: Any = None
    typical_p: Any = None


class OllamaFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """What the bodies of chats and prompts share."""

    model: ModelName
    stream: bool | None = None
    """Ollama streams unless this is false."""
    format: Any = None
    options: OllamaOptions | None = None
    keep_alive: Any = None
    """Accepted, as `think`: models stay loaded, and none thinks apart."""
    think: Any = None

    # Refused unless neutral: see `_NEUTRAL`.
    context: Any = None
    images: Any = None
    logprobs: Any = None
    suffix: Any = None
    template: Any = None
    top_logprobs: Any = None


class OllamaChat(OllamaFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `/api/chat`."""

    messages: list[Any]
    tools: Any = None


class OllamaGenerate(OllamaFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `/api/generate`."""

    prompt: Annotated[str, Meta(min_length=1)]
    system: str | None = None
    raw: bool | None = None


class OllamaEmbed(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `/api/embed`."""

    model: ModelName
    input: Any
    dimensions: Annotated[int, Meta(ge=1, le=65_536)] | None = None

    # Accepted: a text that is too long is refused in any case, and the rest cannot change vectors.
    keep_alive: Any = None
    options: dict[str, Any] | None = None
    truncate: bool | None = None


class OllamaEmbeddings(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `/api/embeddings`, the older endpoint for one text."""

    model: ModelName
    prompt: Annotated[str, Meta(min_length=1)]
    keep_alive: Any = None
    options: dict[str, Any] | None = None


def parse_ollama_embed(body: Mapping[str, Any]) -> EmbeddingRequest:
    """Return what a body of `/api/embed` asks for.

    Raises:
        InvalidRequest: as of `parse_ollama_chat`.
    """
    asked = converted(body, OllamaEmbed)
    return EmbeddingRequest(checked_texts(asked.input), asked.model, asked.dimensions)


def parse_ollama_embeddings(body: Mapping[str, Any]) -> EmbeddingRequest:
    """Return what a body of `/api/embeddings` asks for.

    Raises:
        InvalidRequest: as of `parse_ollama_chat`.
    """
    asked = converted(body, OllamaEmbeddings)
    return EmbeddingRequest([asked.prompt], asked.model, field="prompt")


def parse_ollama_chat(body: Mapping[str, Any], given: Caching = NOTHING) -> ChoicesRequest:
    """Return the turn that a chat's body asks for.

    Raises:
        InvalidRequest: a parameter is missing, unknown, of the wrong type, out of range or not served.
    """
    asked = converted(body, OllamaChat)
    messages = _messages(asked.messages)
    if not messages:
        raise invalid_value("messages", "empty; send at least one message")
    tools = parse_tools(asked.tools, None, None, nested=True)
    return _turn(asked, given, messages=messages, tools=tools, template=continued(messages))


def parse_ollama_generate(body: Mapping[str, Any], given: Caching = NOTHING) -> ChoicesRequest:
    """Return the turn that a prompt's body asks for: a question to the model or, with `raw`, the prompt as it is.

    Raises:
        InvalidRequest: as of `parse_ollama_chat`.
    """
    asked = converted(body, OllamaGenerate)
    if asked.raw:
        return _turn(asked, given, prompt=asked.prompt)
    system = (Message("system", asked.system),) if asked.system else ()
    return _turn(asked, given, messages=(*system, Message("user", asked.prompt)))


def _turn(asked: OllamaFields, given: Caching, **own: Any) -> ChoicesRequest:
    options = asked.options or OllamaOptions()
    refuse_unsupported(asked, _NEUTRAL)
    refuse_unsupported(options, _NEUTRAL_OPTIONS)
    options.model = asked.model
    format = _format(asked.format)
    check_together(format, own.get("tools"))
    limit = options.num_predict
    request = options.turn(
        given,
        sampling=options.sampling(),
        max_output_tokens=limit if limit is not None and limit > 0 else None,
        format=format,
        store=False,
        **own,
    )
    return request_choices([request], n=1, stream=asked.stream is not False, stream_options=None)


def _format(value: Any) -> OutputFormat | None:
    if value in (None, ""):
        return None
    if value == "json":
        return OutputFormat(Grammar("json_object", ""), "format", {"type": "json_object"})
    shown = {"type": "json_schema", "name": "format", "schema": value}
    return OutputFormat(Grammar("json_schema", checked_schema(value, "format"), lenient=True), "format", shown)


def _messages(items: list[Any]) -> tuple[Message, ...]:
    """Return a conversation's messages. Calls have no ids at Ollama: outputs answer them in their order."""
    messages: list[Message] = []
    waiting: list[ToolCall] = []
    for index, item in enumerate(items):
        path = f"messages[{index}]"
        fields = checked_type(item, dict, path)
        role, content = fields.get("role"), fields.get("content") or ""
        if role not in _ROLES:
            raise invalid_value(f"{path}.role", f"{role!r:.80} is not one of {', '.join(_ROLES)}")
        if fields.get("images"):
            raise unsupported_parameter(f"{path}.images", "images are not supported here; send text")
        checked_type(content, str, f"{path}.content")
        if role == "tool":
            messages.append(Message("tool", content, answers=_answered(waiting, fields.get("tool_name"), path).id))
            continue
        calls = enumerate(checked_type(fields.get("tool_calls") or [], list, f"{path}.tool_calls"))
        made = tuple(_call(call, f"call_{index}_{number}", f"{path}.tool_calls[{number}]") for number, call in calls)
        waiting += made
        messages.append(Message(role, content, made))
    return tuple(messages)


def _answered(waiting: list[ToolCall], name: Any, path: str) -> ToolCall:
    """Take the first call that has no output yet, of this function if it is named."""
    for call in waiting:
        if name in (None, "", call.name):
            waiting.remove(call)
            return call
    raise invalid_value(path, "no call comes before this output")


def _call(value: Any, id: str, path: str) -> ToolCall:
    function = checked_type(checked_type(value, dict, path).get("function"), dict, f"{path}.function")
    name = checked_name(function.get("name"), f"{path}.function.name")
    arguments = checked_type(function.get("arguments"), dict, f"{path}.function.arguments")
    return ToolCall(id, name, msgspec.json.encode(arguments).decode())
