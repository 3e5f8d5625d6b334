"""Pages of OpenAI's lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from gateway.errors import InvalidRequest, invalid_value

T = TypeVar("T")


def list_page(items: Sequence[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """Return a list's page that has these items; `more`: others follow."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": more,
    }


def page_of(items: Mapping[str, T], after: str | None, limit: int) -> tuple[dict[str, T], bool]:
    """Return the part of a whole list, whose items are given by id, that begins behind the item `after`, and whether
    others follow.

    Raises:
        InvalidRequest: there is no such item.
    """
    if after is not None and after not in items:
        raise no_such_item(after)
    ids = list(items)
    first = 0 if after is None else ids.index(after) + 1
    return {id: items[id] for id in ids[first : first + limit]}, first + limit < len(ids)


def no_such_item(after: str) -> InvalidRequest:
    """Return the error for a page that begins behind an item that is not there."""
    return invalid_value("after", f"no item {after!r} here")
