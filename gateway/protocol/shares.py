"""The bodies and answers of `/v1/shares`. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

LONGEST = 30 * 86_400
"""Seconds after which every shared conversation has expired."""
MAX_BYTES = 512 * 1024
"""Most bytes of a shared conversation, encrypted."""


class ShareCreate(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/shares`."""

    ciphertext: Annotated[
        bytes,
        Meta(min_length=1, max_length=MAX_BYTES, description="The conversation, encrypted with a key that stays away."),
    ]
    expires_in: Annotated[int, Meta(ge=60, le=LONGEST, description="Seconds for which it can be read.")] = LONGEST


class ShareEntry(Struct):
    """A conversation that its owner has shared."""

    id: str
    created_at: int
    expires_at: int
    bytes: int
    object: Literal["share"] = "share"


class ShareList(Struct):
    """All conversations that the caller has shared and that can be read, the newest first."""

    data: list[ShareEntry]
    object: Literal["list"] = "list"


class SharedConversation(Struct):
    """A shared conversation as its readers get it."""

    id: str
    expires_at: int
    ciphertext: bytes
    object: Literal["share.content"] = "share.content"


class DeletedShare(Struct):
    """What is told of a shared conversation that nobody can read any more."""

    id: str
    object: Literal["share.deleted"] = "share.deleted"
    deleted: Literal[True] = True
