"""Pages of OpenAI's lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.errors import InvalidRequest, invalid_value


def list_page(items: Sequence[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """Return a list's page that has these items; `more`: others follow."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": more,
    }


def page_of(items: Sequence[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
    """Return the page of a whole list that begins behind the item `after`.

    Raises:
        InvalidRequest: there is no such item.
    """
    first = 0
    if after is not None:
        places = [index for index, item in enumerate(items) if item["id"] == after]
        if not places:
            raise no_such_item(after)
        first = places[0] + 1
    return list_page(items[first : first + limit], more=first + limit < len(items))


def no_such_item(after: str) -> InvalidRequest:
    """Return the error for a page that begins behind an item that is not there."""
    return invalid_value("after", f"no item {after!r} here")
