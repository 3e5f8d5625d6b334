"""Decodes a client's JSON, and says how deep it may be nested: whatever walks through it afterwards may do so
recursively."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.errors import InvalidRequest

MAX_LEVELS = 128
"""Objects and lists inside each other, of a whole message. Python's own limit is 1000 calls, several for each level."""
_CONTAINERS = frozenset({dict, list})
"""What decoders of JSON and MessagePack make, and nothing else."""


def json_depth(value: Any, limit: int = MAX_LEVELS) -> int:
    """Objects and lists inside each other; counting stops above `limit`."""
    depth, level = 0, [value] if type(value) in _CONTAINERS else []
    while level and depth <= limit:
        # A body may hold half a million numbers, and all connections wait meanwhile: nothing is called for each.
        children = (item.values() if type(item) is dict else item for item in level)
        level = [child for each in children for child in each if type(child) in _CONTAINERS]
        depth += 1
    return depth


def check_depth(value: Any, what: str, code: str) -> None:
    """
    Args:
        what: what it is, for the message, such as `the body`.
        code: the error's.

    Raises:
        InvalidRequest: it is nested deeper than `MAX_LEVELS`.
    """
    if json_depth(value) > MAX_LEVELS:
        raise InvalidRequest(f"{what} is nested deeper than {MAX_LEVELS} levels; flatten it", code=code)


def decode_json(content: bytes | str, what: str, code: str) -> Any:
    """Decode JSON. For `what` and `code` see `check_depth`.

    Raises:
        InvalidRequest: it is not valid, or nested too deep.
    """
    try:
        value = msgspec.json.decode(content)
    # Text from Python may hold a lone surrogate, bytes may be invalid UTF-8: both are UnicodeErrors.
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"{what} is not valid JSON: {error}", code=code) from None
    check_depth(value, what, code)
    return value
