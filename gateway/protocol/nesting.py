"""How deep a client's JSON may be nested: whatever walks through a body afterwards may do so recursively."""

from __future__ import annotations

from typing import Any

from gateway.errors import InvalidRequest

MAX_LEVELS = 128
"""Objects and lists inside each other, of a whole message. Python's own limit is 1000 calls, several for each level."""


def json_depth(value: Any, limit: int = MAX_LEVELS) -> int:
    """Objects and lists inside each other; counting stops above `limit`."""
    depth, level = 0, [value]
    while level and depth <= limit:
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
        depth += bool(containers)
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
