"""The answers of the endpoints under `/v1` as types, for their OpenAPI document. Pure.

Answers are made as plain data; a test holds them to these types. An object may hold more than is named here: of what
OpenAI and Anthropic have in common with this server, their documentation says more.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class ErrorBody(Struct):
    """The cause, and the remedy."""

    message: str
    type: str
    param: str | None
    """Path of the field that was wrong."""
    code: str


class Error(Struct):
    """An error in OpenAI's shape."""

    error: ErrorBody


class AnthropicErrorBody(Struct):
    """The cause, and the remedy."""

    type: str
    message: str


class AnthropicError(Struct):
    """An error in Anthropic's shape."""

    type: Literal["error"]
    error: AnthropicErrorBody
    request_id: str


class ResponseObject(Struct):
    """A response as it stands. Parameters of its request are repeated."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[dict[str, Any]]
    """Messages and calls of functions."""
    usage: dict[str, Any] | None
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    background: bool
    conversation: dict[str, str] | None
    previous_response_id: str | None
    metadata: dict[str, str]


class ResponseEvent(Struct):
    """One event of a response's stream; docs/protocol.md lists them."""

    type: str
    sequence_number: int


class DeletedResponse(Struct):
    """What is told of a response that is forgotten."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class CountedInput(Struct):
    """The length of what a response would answer."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Item(Struct):
    """A message, a call of a function, its output, or a compaction."""

    id: str
    type: Literal["message", "function_call", "function_call_output", "compaction"]


class CompactedResponse(Struct):
    """What stands for a conversation."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Item]
    usage: dict[str, Any]


class ConversationObject(Struct):
    """A conversation without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(Struct):
    """What is told of a conversation that is deleted."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class ItemList(Struct):
    """A page of items."""

    object: Literal["list"]
    data: list[Item]
    first_id: str
    """Empty if there is none, as is `last_id`."""
    last_id: str
    has_more: bool


class ResponseFeedback(Struct):
    """A rating that was recorded, or withdrawn (null)."""

    object: Literal["response.feedback"]
    response_id: str
    rating: Literal["up", "down", "preferred"] | None
    reason: str | None
    over: list[str]
    comment: str | None


class CompletionUsage(Struct):
    """Tokens of a whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class ChatMessage(Struct):
    """What the assistant said."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class ChatChoice(Struct):
    """One answer."""

    index: int
    message: ChatMessage
    finish_reason: FinishReason
    logprobs: dict[str, Any] | None


class ChatCompletion(Struct):
    """Answers to one conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: str
    choices: list[ChatChoice]
    usage: CompletionUsage


class ChatChunkChoice(Struct):
    """What one answer gains."""

    index: int
    delta: dict[str, Any]
    finish_reason: FinishReason | None
    logprobs: dict[str, Any] | None


class ChatCompletionChunk(Struct):
    """One event of a streamed chat completion; `[DONE]` ends the stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: str
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET


class TextChoice(Struct):
    """One answer, or what it gains."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: dict[str, Any] | None


class TextCompletion(Struct):
    """Answers to one or more prompts, or one event of a stream of them."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: CompletionUsage | UnsetType | None = UNSET


class AnthropicMessage(Struct):
    """An answer in Anthropic's shape."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    """Blocks of `text` and `tool_use`."""
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
    stop_sequence: str | None
    usage: dict[str, int]


class AnthropicEvent(Struct):
    """One event of a streamed message."""

    type: Literal[
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    ]


class InputTokens(Struct):
    """The length of a prompt."""

    input_tokens: int


class EmbeddingObject(Struct):
    """The vector of one text, as numbers or as base64 of 32-bit floats."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """Vectors in the order of their texts."""

    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage


class File(Struct):
    """A file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class FileList(Struct):
    """A page of files."""

    object: Literal["list"]
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(Struct):
    """What is told of a file that is deleted."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchObject(Struct):
    """A batch as it stands. It also has the times at which it entered each status."""

    id: str
    object: Literal["batch"]
    endpoint: str
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    created_at: int
    expires_at: int
    output_file_id: str | None
    error_file_id: str | None
    errors: dict[str, Any] | None
    request_counts: dict[str, int]
    usage: dict[str, Any]
    metadata: dict[str, str] | None


class BatchList(Struct):
    """A page of batches."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ModelObjectPrice(Struct):
    """Prices of tokens in micro-dollars per million."""

    input: int
    cached_input: int
    output: int


class Model(Struct):
    """A name that `model` may have."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["chat", "embedding"]
    tier: str | None
    context_length: int
    price: ModelObjectPrice | None


class ModelObjectList(Struct):
    """All names that `model` may have."""

    object: Literal["list"]
    data: list[Model]


class Ticket(Struct):
    """A secret that opens one WebSocket within so many seconds."""

    object: Literal["ticket"]
    ticket: str
    expires_in: int
