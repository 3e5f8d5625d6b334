"""The operations of `/v1` as their OpenAPI description names them: bodies, answers and errors by their types."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gateway import errors
from gateway.batches.state import BatchCreate
from gateway.errors import ApiError
from gateway.http.batches import BatchesPage
from gateway.http.feedback import FeedbackCreate
from gateway.http.files import FileForm, FilesPage
from gateway.protocol import answers, chats, prompts, shares
from gateway.protocol.anthropic.errors import OVERLOADED
from gateway.protocol.anthropic.requests import MessageCount, MessageCreate
from gateway.protocol.chat_completion_create import ChatCompletionCreate
from gateway.protocol.completion_create import CompletionCreate
from gateway.protocol.conversation_create import ConversationCreate, ConversationUpdate, ItemsCreate
from gateway.protocol.embedding_create import EmbeddingCreate
from gateway.protocol.input_items import ItemsPage
from gateway.protocol.response_create import ResponseCompact, ResponseCreate

_ALWAYS: tuple[type[ApiError], ...] = (
    errors.InvalidRequest,
    errors.Unauthorized,
    errors.Forbidden,
    errors.MethodNotAllowed,
    errors.RateLimited,
    errors.ApiError,
    errors.Unavailable,
)
"""Errors of every operation."""


_CONVERSATION = "/v1/conversations/{conversation_id}"
_CHAT = "/v1/chats/{chat_id}"
_SHARE = "/v1/shares/{share_id}"
_PROMPT = "/v1/prompts/{prompt_id}"


class ReadQuery(Struct):
    """How a response is read."""

    stream: bool = False
    starting_after: int = -1
    """Number of the event after which the stream begins."""


class Operation(Struct, frozen=True):
    """One method of one path."""

    method: Literal["get", "post", "delete"]
    path: str
    name: str
    """What clients made from the description call it."""
    summary: str
    answer: type[Struct] | None
    """Type of the answer; None: bytes."""
    status: int = 200
    body: type[Struct] | None = None
    form: type[Struct] | None = None
    """Parts of a `multipart/form-data` body."""
    query: type[Struct] | None = None
    stream: type[Struct] | None = None
    """The data of each event of a stream, if a request may ask for one."""
    turns: bool = False
    """Whether turns answer it, which may be repeated with an idempotency key."""
    raises: tuple[type[ApiError], ...] = ()
    """Errors beside those that many operations have."""

    @property
    def error(self) -> type[Struct]:
        """The shape of its errors."""
        return answers.AnthropicError if self.path.startswith("/v1/messages") else answers.Error

    @property
    def codes(self) -> dict[int, list[str]]:
        """Codes of its errors by status."""
        found = [*_ALWAYS, *self.raises]
        found += [errors.TooLarge, errors.UnsupportedMediaType] if self.body or self.form else []
        found += [errors.NotFound] if "{" in self.path else []
        found += [errors.ModelNotFound, errors.Conflict, errors.EngineFailed, errors.NotCached] if self.turns else []
        codes: dict[int, list[str]] = {}
        for kind in found:
            busy = kind is errors.Unavailable and self.error is answers.AnthropicError
            codes.setdefault(OVERLOADED if busy else kind.status, []).append(kind.code)
        return dict(sorted(codes.items()))


OPERATIONS = (
    Operation(
        "post",
        "/v1/responses",
        "create_response",
        "Answer a conversation; the response can be read, resumed and continued",
        answers.ResponseObject,
        body=ResponseCreate,
        stream=answers.ResponseEvent,
        turns=True,
    ),
    Operation(
        "get",
        "/v1/responses/{id}",
        "read_response",
        "Read a response as it stands, or the rest of its stream",
        answers.ResponseObject,
        query=ReadQuery,
        stream=answers.ResponseEvent,
    ),
    Operation(
        "delete",
        "/v1/responses/{id}",
        "delete_response",
        "Forget a response that has ended",
        answers.DeletedResponse,
        raises=(errors.Conflict,),
    ),
    Operation("post", "/v1/responses/{id}/cancel", "cancel_response", "End a response", answers.ResponseObject),
    Operation(
        "get",
        "/v1/responses/{id}/input_items",
        "list_input_items",
        "List the conversation that a response answers",
        answers.ItemList,
        query=ItemsPage,
    ),
    Operation(
        "post",
        "/v1/responses/{id}/feedback",
        "rate_response",
        "Rate a response",
        answers.ResponseFeedback,
        body=FeedbackCreate,
    ),
    Operation(
        "post",
        "/v1/responses/input_tokens",
        "count_input_tokens",
        "Count the tokens of what a response would answer",
        answers.CountedInput,
        body=ResponseCreate,
        raises=(errors.ModelNotFound, errors.Conflict),
    ),
    Operation(
        "post",
        "/v1/responses/compact",
        "compact_response",
        "Summarise a conversation; the summary stands for it in later requests",
        answers.CompactedResponse,
        body=ResponseCompact,
        raises=(errors.ModelNotFound, errors.Conflict, errors.EngineFailed, errors.NotCached),
    ),
    Operation(
        "post",
        "/v1/conversations",
        "create_conversation",
        "Make a conversation, which responses continue and add to",
        answers.ConversationObject,
        body=ConversationCreate,
        raises=(errors.NotFound, errors.Conflict),
    ),
    Operation("get", _CONVERSATION, "read_conversation", "Read a conversation", answers.ConversationObject),
    Operation(
        "post",
        _CONVERSATION,
        "update_conversation",
        "Replace the metadata of a conversation",
        answers.ConversationObject,
        body=ConversationUpdate,
    ),
    Operation(
        "post",
        f"{_CONVERSATION}/items",
        "create_items",
        "Add items to a conversation",
        answers.ItemList,
        body=ItemsCreate,
        raises=(errors.Conflict,),
    ),
    Operation(
        "get", f"{_CONVERSATION}/items", "list_items", "List a conversation's items", answers.ItemList, query=ItemsPage
    ),
    Operation("get", f"{_CONVERSATION}/items/{{item_id}}", "read_item", "Read an item", answers.Item),
    Operation(
        "delete", f"{_CONVERSATION}/items/{{item_id}}", "delete_item", "Delete an item", answers.ConversationObject
    ),
    Operation("delete", _CONVERSATION, "delete_conversation", "Delete a conversation", answers.DeletedConversation),
    Operation(
        "get", "/v1/chats", "list_chats", "List the chat page's conversations", chats.ChatList, query=chats.ChatsPage
    ),
    Operation(
        "post",
        "/v1/chats/search",
        "search_chats",
        "Find conversations by words of title and text",
        chats.ChatsFound,
        body=chats.ChatSearch,
    ),
    Operation(
        "post",
        _CHAT,
        "write_chat",
        "Make a conversation (`If-None-Match: *`), or change what was read (`If-Match`)",
        chats.ChatEntry,
        body=chats.ChatWrite,
        raises=(errors.Conflict, errors.PreconditionFailed, errors.PreconditionRequired),
    ),
    Operation("get", _CHAT, "read_chat", "Read a conversation of the chat page", chats.ChatTree),
    Operation(
        "post",
        "/v1/shares",
        "create_share",
        "Share a conversation that was encrypted before",
        shares.ShareEntry,
        status=201,
        body=shares.ShareCreate,
        raises=(errors.Conflict,),
    ),
    Operation("get", "/v1/shares", "list_shares", "List what one shares", shares.ShareList),
    Operation(
        "get",
        _SHARE,
        "read_share",
        "Read a shared conversation, encrypted as it is",
        shares.SharedConversation,
        raises=(errors.Gone,),
    ),
    Operation("delete", _SHARE, "revoke_share", "Let nobody read it any more", shares.DeletedShare),
    Operation("delete", _CHAT, "delete_chat", "Delete a conversation and its responses", chats.DeletedChat),
    Operation("get", "/v1/prompts", "list_prompts", "List the prompts that a tenant shares", prompts.PromptList),
    Operation(
        "post",
        "/v1/prompts",
        "create_prompt",
        "Share a prompt with everybody who chats for the tenant",
        prompts.PromptObject,
        status=201,
        body=prompts.PromptWrite,
        raises=(errors.Conflict,),
    ),
    Operation("get", _PROMPT, "read_prompt", "Read a prompt", prompts.PromptObject),
    Operation(
        "post",
        _PROMPT,
        "change_prompt",
        "Change a prompt that was read (`If-Match`)",
        prompts.PromptObject,
        body=prompts.PromptWrite,
        raises=(errors.PreconditionFailed, errors.PreconditionRequired),
    ),
    Operation(
        "delete",
        _PROMPT,
        "delete_prompt",
        "Delete a prompt that was read (`If-Match`)",
        prompts.DeletedPrompt,
        raises=(errors.PreconditionFailed, errors.PreconditionRequired),
    ),
    Operation(
        "post",
        "/v1/chat/completions",
        "create_chat_completion",
        "Answer a conversation",
        answers.ChatCompletion,
        body=ChatCompletionCreate,
        stream=answers.ChatCompletionChunk,
        turns=True,
    ),
    Operation(
        "post",
        "/v1/completions",
        "create_completion",
        "Continue raw prompts",
        answers.TextCompletion,
        body=CompletionCreate,
        stream=answers.TextCompletion,
        turns=True,
    ),
    Operation(
        "post",
        "/v1/messages",
        "create_message",
        "Answer a conversation in Anthropic's form",
        answers.AnthropicMessage,
        body=MessageCreate,
        stream=answers.AnthropicEvent,
        turns=True,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "count_tokens",
        "Count the tokens of a prompt in Anthropic's form",
        answers.InputTokens,
        body=MessageCount,
        raises=(errors.ModelNotFound,),
    ),
    Operation(
        "post",
        "/v1/embeddings",
        "create_embeddings",
        "Turn texts into vectors",
        answers.EmbeddingList,
        body=EmbeddingCreate,
        raises=(errors.ModelNotFound,),
    ),
    Operation(
        "post",
        "/v1/files",
        "create_file",
        "Upload the requests of a batch",
        answers.File,
        form=FileForm,
        raises=(errors.Conflict,),
    ),
    Operation("get", "/v1/files", "list_files", "List files", answers.FileList, query=FilesPage),
    Operation("get", "/v1/files/{id}", "read_file", "Describe a file", answers.File),
    Operation("get", "/v1/files/{id}/content", "read_file_content", "Read a file", None),
    Operation("delete", "/v1/files/{id}", "delete_file", "Delete a file", answers.DeletedFile),
    Operation(
        "post",
        "/v1/batches",
        "create_batch",
        "Answer the requests of a file when there is room",
        answers.BatchObject,
        body=BatchCreate,
        raises=(errors.NotFound, errors.Conflict),
    ),
    Operation(
        "post",
        "/v1/batches/{id}/cancel",
        "cancel_batch",
        "End a batch",
        answers.BatchObject,
        raises=(errors.Conflict,),
    ),
    Operation("get", "/v1/batches", "list_batches", "List batches", answers.BatchList, query=BatchesPage),
    Operation("get", "/v1/batches/{id}", "read_batch", "Read a batch as it stands", answers.BatchObject),
    Operation("get", "/v1/models", "list_models", "List the names that `model` may have", answers.ModelObjectList),
    Operation("get", "/v1/models/{model}", "read_model", "Describe one of these names", answers.Model),
    Operation(
        "post",
        "/v1/tickets",
        "create_ticket",
        "Trade a key for a ticket that opens one WebSocket",
        answers.Ticket,
        status=201,
    ),
)
"""All of them, in the order in which they are shown."""
