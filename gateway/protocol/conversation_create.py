"""The bodies of `/v1/conversations`."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from gateway.protocol.messages import parse_messages
from gateway.protocol.requests import Message
from gateway.protocol.response_create import ITEMS, Metadata

NewItems = Annotated[list[Any], Meta(max_length=20)]
"""Items in one request; OpenAI takes as many."""
_DIALECT = replace(ITEMS, field="items")


class ConversationCreate(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/conversations`."""

    items: NewItems | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/conversations/{id}`."""

    metadata: Metadata | None


class ItemsCreate(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/conversations/{id}/items`."""

    items: NewItems


def parse_items(items: list[Any] | None) -> tuple[Message, ...]:
    """Return the messages of items; outputs may answer calls that are not among them.

    Raises:
        InvalidRequest: see `gateway.protocol.messages.parse_messages`.
    """
    return parse_messages(items or [], _DIALECT, continues=True)
