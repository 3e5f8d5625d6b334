"""Conversations as request bodies spell them: a list of messages with text, or with a list of text parts.

Checked by hand rather than by a struct, so that whatever is not served (images, tool calls, ...) is refused by its name
and place.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct

from gateway.errors import InvalidRequest
from gateway.protocol.requests import Message, Role

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


class Dialect(Struct, frozen=True):
    """How one endpoint spells messages."""

    field: str
    """Name of the list in the body."""
    parts: tuple[str, ...]
    """Types of content parts that hold text."""
    keys: Collection[str]
    """What a message may have beside `role` and `content`, without effect."""
    unserved: Collection[str] = ()
    """Keys of OpenAI's that would have an effect; accepted only while they are null or empty."""


def parse_messages(items: list[Any], dialect: Dialect) -> tuple[Message, ...]:
    """The messages of a conversation.

    Raises:
        InvalidRequest: `param` is the path of what is wrong or not served.
    """
    return tuple(_message(item, f"{dialect.field}[{index}]", dialect) for index, item in enumerate(items))


def _message(item: Any, path: str, dialect: Dialect) -> Message:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{path}: expected an object, got {_name(item)}", param=path, code="invalid_value")
    kind = item.get("type", "message")
    if kind != "message":
        raise InvalidRequest(
            f"{path}.type: {_quote(kind)} items are not supported; send messages",
            param=f"{path}.type",
            code="unsupported_parameter",
        )
    for key, value in item.items():
        _check_key(key, value, path, dialect)
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(
            f"{path}.role: {_quote(role)} is not one of {', '.join(_ROLES)}", param=f"{path}.role", code="invalid_value"
        )
    return Message(_ROLES[role], _text(item.get("content"), f"{path}.content", dialect))


def _check_key(key: str, value: Any, path: str, dialect: Dialect) -> None:
    where = f"{path}.{key}"
    if key in ("role", "content", "type") or key in dialect.keys:
        return
    if key not in dialect.unserved:
        raise InvalidRequest(f"Unknown parameter: '{where}'.", param=where, code="unknown_parameter")
    if value not in (None, []):
        raise InvalidRequest(
            f"{where}: not supported by this server. Leave it out.", param=where, code="unsupported_parameter"
        )


def _text(content: Any, path: str, dialect: Dialect) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(
            f"{path}: expected a string or a list of parts, got {_name(content)}", param=path, code="invalid_value"
        )
    return "\n".join(_part(part, f"{path}[{index}]", dialect) for index, part in enumerate(content))


def _part(part: Any, path: str, dialect: Dialect) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{path}: expected an object, got {_name(part)}", param=path, code="invalid_value")
    kind = part.get("type")
    if kind not in dialect.parts:
        raise InvalidRequest(
            f"{path}.type: {_quote(kind)} parts are not supported; send {' or '.join(dialect.parts)}",
            param=f"{path}.type",
            code="unsupported_parameter",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(
            f"{path}.text: expected a string, got {_name(text)}", param=f"{path}.text", code="invalid_value"
        )
    return text


def _quote(value: Any) -> str:
    """A client's value in a message, at most 80 characters of it."""
    return repr(value)[:80]


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__
