"""The input of a response as OpenAI's list of items: the whole conversation before its answer, in pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

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
    items = _items(response_id.removeprefix("resp_"), conversation)
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


def _items(name: str, conversation: Sequence[Message]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for message in conversation:
        items += _of_message(message, name, len(items))
    return items


def _of_message(message: Message, name: str, index: int) -> list[dict[str, Any]]:
    if message.role == "tool":
        output = {"type": "function_call_output", "call_id": message.answers, "output": message.content}
        return [{"id": f"fco_{name}_{index}", "status": "completed", **output}]
    items: list[dict[str, Any]] = []
    if message.content or not message.calls:
        kind = "output_text" if message.role == "assistant" else "input_text"
        part: dict[str, Any] = {"type": kind, "text": message.content}
        if kind == "output_text":
            part |= {"annotations": []}
        said = {"type": "message", "role": message.role, "content": [part]}
        items.append({"id": f"msg_{name}_{index}", "status": "completed", **said})
    for number, call in enumerate(message.calls, index + len(items)):
        made = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"id": f"fc_{name}_{number}", "status": "completed", **made})
    return items
