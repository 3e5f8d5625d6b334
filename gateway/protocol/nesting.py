"""How deep a client's JSON may be nested: whatever walks through a body afterwards may do so recursively."""

from __future__ import annotations

from typing import Any

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
