"""The input of a response as OpenAI's list of items: the whole conversation before its answer, in pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from gateway.errors import invalid_value
from gateway.protocol.events import Event
from gateway.protocol.requests import Message, converted


class ItemsPage(Struct, forbid_unknown_fields=True):
    """The page of items that a query asks for."""

    after: Annotated[str, Meta(max_length=128)] | None = None
    """Id of the item before the page."""
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


def parse_page(query: dict[str, str]) -> ItemsPage:
    """Return the page that a query asks for.

    Raises:
        InvalidRequest: a parameter is unknown or out of range.
    """
    given = {name: value for name, value in query.items() if name.rstrip("[]") != "include"}  # there is nothing to add
    return converted(given, ItemsPage, strict=False)


def input_items(response_id: str, conversation: Sequence[Message], page: ItemsPage) -> Event:
    """Return one page of a conversation's items.

    Raises:
        InvalidRequest: `after` is no item of it.
    """
    items = [_shown(id, part) for id, part in item_messages(response_id, conversation).items()]
    if page.order == "desc":
        items.reverse()
    first = 0
    if page.after is not None:
        places = [index for index, item in enumerate(items) if item["id"] == page.after]
        if not places:
            raise invalid_value("after", f"no item {page.after!r} here")
        first = places[0] + 1
    shown = items[first : first + page.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": first + len(shown) < len(items),
    }


def item_messages(response_id: str, conversation: Sequence[Message]) -> dict[str, Message]:
    """Return the items of a conversation, each as a message of its own, by id."""
    name = response_id.removeprefix("resp_")
    items: dict[str, Message] = {}
    for message in conversation:
        for part in _parts(message):
            prefix = "fco" if part.role == "tool" else "fc" if part.calls else "msg"
            items[f"{prefix}_{name}_i{len(items)}"] = part  # the answer's own items have no such letter
    return items


def _parts(message: Message) -> list[Message]:
    if message.role == "tool":
        return [message]
    said = [replace(message, calls=())] if message.content or not message.calls else []
    return [*said, *(Message("assistant", "", (call,)) for call in message.calls)]


def _shown(id: str, part: Message) -> dict[str, Any]:
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
