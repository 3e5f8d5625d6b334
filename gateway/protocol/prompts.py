"""The bodies and answers of `/v1/prompts`. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class PromptWrite(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/prompts` and `POST /v1/prompts/{id}`."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    text: Annotated[
        str,
        Meta(min_length=1, max_length=10_000, description="The chat page asks for `{{words}}` in it, each time."),
    ]


class PromptObject(Struct):
    """A prompt that a tenant shares with everybody who chats for it."""

    id: str
    name: str
    text: str
    revision: int
    """Changes with every write; in quotes it is the ETag."""
    object: Literal["prompt"] = "prompt"


class PromptList(Struct):
    """All prompts of a tenant, by name."""

    data: list[PromptObject]
    may_change: bool
    """Whether the caller may make, change and delete them."""
    object: Literal["list"] = "list"


class DeletedPrompt(Struct):
    """What is told of a prompt that is deleted."""

    id: str
    object: Literal["prompt.deleted"] = "prompt.deleted"
    deleted: Literal[True] = True
