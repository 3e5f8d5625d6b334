"""Cursors of lists: where the next page begins, as text that clients hand back unread. Pure.

A cursor is base64url of JSON: the list's name and a position in it. It grants nothing that the caller may not read
anyway, so it is not signed; one that was made for another list, or by hand, is refused.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from gateway.errors import invalid_value

MAX_LENGTH = 512


def encode(listing: str, position: str) -> str:
    """The cursor of a position in a list."""
    return base64.urlsafe_b64encode(msgspec.json.encode((listing, position))).rstrip(b"=").decode()


def decode(listing: str, cursor: str | None) -> str:
    """The position; empty is the beginning.

    Raises:
        InvalidRequest: it is not a cursor of this list.
    """
    if cursor is None:
        return ""
    try:
        content = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        of, position = msgspec.json.decode(content, type=tuple[str, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        of, position = "", ""
    if of != listing:
        raise invalid_value("cursor", "not one of this list; pass `next` of the page before, or leave it out to begin")
    return position
