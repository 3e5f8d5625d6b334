"""Conversations as OpenAI's lists of items, in pages: the input of a response, or a conversation that is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from gateway.protocol.events import Event
from gateway.protocol.pages import page_of
from gateway.protocol.requests import Message, converted


class ItemsPage(Struct, forbid_unknown_fields=True):
    """The page of items that a query asks for."""

    after: Annotated[str, Meta(max_length=128)] | None = None
    """Id of the item before the page."""
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


def parse_page(query: Mapping[str, str]) -> ItemsPage:
    """Return the page that a query asks for.

    Raises:
        InvalidRequest: a parameter is unknown or out of range.
    """
    given = {name: value for name, value in query.items() if name.rstrip("[]") != "include"}  # there is nothing to add
    return converted(given, ItemsPage, strict=False)


def items_page(items: Mapping[str, Message], page: ItemsPage) -> Event:
    """Return one page of items, which are given in their order.

    Raises:
        InvalidRequest: `after` is none of them.
    """
    ordered = items if page.order == "asc" else dict(list(items.items())[::-1])
    shown, more = page_of(ordered, page.after, page.limit)
    return item_list(shown, has_more=more)


def item_list(items: Mapping[str, Message], *, has_more: bool = False) -> Event:
    """Return OpenAI's list of these items."""
    ids = list(items) or [""]  # OpenAI's types have no null here
    data = [shown_item(id, message) for id, message in items.items()]
    return {"object": "list", "data": data, "first_id": ids[0], "last_id": ids[-1], "has_more": has_more}


def item_messages(response_id: str, conversation: Sequence[Message]) -> dict[str, Message]:
    """Return the items of a conversation, each as a message of its own, by id."""
    name = response_id.removeprefix("resp_")
    items: dict[str, Message] = {}
    for message in conversation:
        for part in _parts(message):
            items[f"{_prefix(part)}_{name}_i{len(items)}"] = part  # the answer's own items have no such letter
    return items


def shown_item(id: str, part: Message) -> dict[str, Any]:
    """Return an item as OpenAI shows it."""
    if part.compacted is not None:
        return {"id": id, "type": "compaction", "encrypted_content": part.compacted}
    item: dict[str, Any] = {"id": id, "status": "completed"}
    if part.role == "tool":
        return item | {"type": "function_call_output", "call_id": part.answers, "output": part.content}
    if part.calls:
        (call,) = part.calls
        return item | {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
    content: dict[str, Any] = {"type": "input_text", "text": part.content}
    if part.role == "assistant":
        content |= {"type": "output_text", "annotations": []}
    return item | {"type": "message", "role": part.role, "content": [content]}


def _prefix(part: Message) -> str:
    if part.compacted is not None:
        return "cmp"
    return "fco" if part.role == "tool" else "fc" if part.calls else "msg"


def _parts(message: Message) -> list[Message]:
    if message.role == "tool":
        return [message]
    said = [replace(message, calls=())] if message.content or not message.calls else []
    return [*said, *(Message("assistant", "", (call,)) for call in message.calls)]
