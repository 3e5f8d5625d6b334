"""The bodies and answers of `/v1/chats`. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

TurnId = Annotated[str, Meta(min_length=1, max_length=128)]
Title = Annotated[str, Meta(max_length=200)]
Folder = Annotated[str, Meta(max_length=100)]
Milliseconds = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""Since 1970, until the end of the year 9999."""


class ChatTurn(Struct):
    """A question and its answer."""

    # Unknown fields are ignored where it is read from Redis: a newer gateway may have written them.

    id: Annotated[TurnId, Meta(description="Chosen by the client.")]
    question: str
    text: Annotated[str, Meta(description="The answer.")]
    parent: Annotated[TurnId | None, Meta(description="Id of the turn that this one follows.")] = None
    response_id: Annotated[
        Annotated[str, Meta(max_length=128)] | None, Meta(description="Response that is deleted with the conversation.")
    ] = None
    data: Annotated[dict[str, Any], Meta(description="Whatever else the client keeps of it.")] = {}


class ChatTurnWrite(ChatTurn, forbid_unknown_fields=True):
    """A question and its answer, as they are sent."""


class ChatWrite(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/chats/{id}`: the whole conversation, but for turns that the server has already."""

    title: Title
    updated_ms: Annotated[Milliseconds, Meta(description="When it was changed last; lists are in this order.")]
    turns: Annotated[list[ChatTurnWrite], Meta(max_length=1000, description="New and changed ones; others stay.")] = []
    leaf: Annotated[TurnId | None, Meta(description="Id of the last turn that is shown.")] = None
    settings: Annotated[dict[str, Any], Meta(description="Of the next questions.")] = {}
    pinned: bool = False
    folder: Folder = ""


class ChatSearch(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/chats/search`."""

    query: Annotated[str, Meta(max_length=500, description="Words that must all be in title or turns.")]


class ChatsPage(Struct, forbid_unknown_fields=True):
    """The page of conversations that a query asks for."""

    after: Annotated[str, Meta(max_length=64)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ChatEntry(Struct):
    """A conversation without its turns."""

    id: str
    title: str
    updated_ms: int
    pinned: bool
    folder: str
    revision: int
    """Changes with every write; in quotes it is the ETag."""
    object: Literal["chat"] = "chat"


class ChatTree(ChatEntry, kw_only=True):
    """A conversation."""

    leaf: str | None
    settings: dict[str, Any]
    turns: list[ChatTurn]
    """In the order in which the server first got them."""


class ChatList(Struct):
    """A page of conversations, the newest first."""

    data: list[ChatEntry]
    has_more: bool
    object: Literal["list"] = "list"


class ChatsFound(Struct):
    """Conversations with all words of a search, the newest first."""

    data: list[ChatEntry]
    complete: bool
    """Whether all conversations were searched before the time for it was over."""
    object: Literal["list"] = "list"


class DeletedChat(Struct):
    """What is told of a conversation that is deleted."""

    id: str
    object: Literal["chat.deleted"] = "chat.deleted"
    deleted: Literal[True] = True
