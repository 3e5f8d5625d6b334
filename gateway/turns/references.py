"""Puts items of earlier responses where messages refer to them by id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.errors import Conflict, NotFound, invalid_value
from gateway.protocol.input_items import item_messages
from gateway.protocol.messages import join_calls
from gateway.protocol.requests import Message, ToolCall
from gateway.turns.turn import Turn, TurnState

MAX_RESPONSES = 256
"""Most different responses of which one request may name items: each is a look-up."""

Find = Callable[[str], Awaitable[Turn | None]]
"""Finds a response of the caller's tenant."""


async def resolved(messages: tuple[Message, ...], find: Find) -> tuple[Message, ...]:
    """Return messages with the items that they name; the same messages if they name none.

    Raises:
        NotFound: there is no such item, or no longer.
        Conflict: its response is still in progress.
        InvalidRequest: too many responses are named.
    """
    if not any(message.reference for message in messages):
        return messages
    known: dict[str, dict[str, Message]] = {}
    found = []
    for message in messages:
        if message.reference is not None:
            id = message.reference
            response = f"resp_{id.split('_')[1]}" if "_" in id else ""
            if response not in known:
                if len(known) == MAX_RESPONSES:
                    raise invalid_value("input", f"names items of more than {MAX_RESPONSES} responses; send them whole")
                known[response] = _items(await find(response))
            if id not in known[response]:
                raise NotFound(
                    f"Item with id '{id[:80]}' not found. Items are kept as long as their response is; send it whole.",
                    param="input",
                    code="item_not_found",
                )
            message = known[response][id]
        found.append(message)
    return join_calls(found)


def answer_items(turn: Turn) -> dict[str, Message]:
    """Return the items of a turn's answer by id."""
    items = {}
    for item in turn.log.items:
        calls = () if item.call is None else (ToolCall(item.call.id, item.call.name, item.text),)
        items[turn.view.item_id(item)] = Message("assistant", "" if calls else item.text, calls)
    return items


def _items(turn: Turn | None) -> dict[str, Message]:
    """The items of a response's input and output, by id."""
    if turn is None or turn.state in (TurnState.ADMITTING, TurnState.REFUSED):
        return {}
    if not turn.finished:
        raise Conflict(
            f"input: names an item of {turn.id}, which is still in progress; wait for its last event or cancel it",
            param="input",
            code="response_in_progress",
        )
    return item_messages(turn.id, turn.conversation) | answer_items(turn)
