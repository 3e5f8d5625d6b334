"""Parses conversations in request bodies: messages of text or text parts, function calls and their outputs.

Checked by hand rather than by a struct, so that whatever is not served (images, calls of other tools, ...) is refused
by its name and place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.errors import InvalidRequest, invalid_value, unknown_parameter, unsupported_parameter
from gateway.protocol.output_format import checked_name, checked_type, type_name
from gateway.protocol.requests import Message, Role, ToolCall

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
MAX_CALL_ID = 256
MAX_ITEM_ID = 128
_IMAGES = ("image_url", "input_image")
_FUNCTION = "function_"
"""Prefix of the ids of calls of the older kind, which have only a name."""


class Dialect(Struct, frozen=True):
    """The spelling of messages at one endpoint."""

    field: str
    """Name of the body's field that holds the list."""
    parts: tuple[str, ...]
    """Types of the content parts that hold text."""
    keys: Collection[str]
    """Keys of a message beside `role` and `content` that have no effect."""
    unserved: Collection[str] = ()
    """Keys of OpenAI's that would have an effect; accepted only while they are null or empty."""
    items: bool = False
    """Whether calls and their outputs are items of their own (Responses), not parts of messages (chat completions)."""


def parse_messages(items: list[Any], dialect: Dialect, *, continues: bool = False) -> tuple[Message, ...]:
    """The messages of a conversation.

    Args:
        continues: it goes on from a previous response, so that outputs may answer calls that are not in it.

    Raises:
        InvalidRequest: `param` is the path of what is wrong or not served.
    """
    messages: list[Message] = []
    referring = False
    called: set[str] = set()
    for index, item in enumerate(items):
        path = f"{dialect.field}[{index}]"
        message = _message(item, path, dialect)
        if message is None:
            continue
        referring |= message.reference is not None
        # Outputs of the older kind answer a function by its name, and may come without its call.
        named = not dialect.items and item["role"] == "function"
        if message.answers is not None and message.answers not in called and not (continues or referring or named):
            key = "call_id" if dialect.items else "tool_call_id"
            raise _unknown_call(message.answers, f"{path}.{key}")
        called.update(call.id for call in message.calls)
        messages.append(message)
    return join_calls(messages) if dialect.items else tuple(messages)


def join_calls(items: Iterable[Message]) -> tuple[Message, ...]:
    """Join calls that are items of their own with what the assistant said before them."""
    messages: list[Message] = []
    for item in items:
        last = messages[-1] if messages else None
        if item.calls and last is not None and last.role == "assistant" and last.reference is None:
            messages[-1] = replace(last, calls=last.calls + item.calls)
        else:
            messages.append(item)
    return tuple(messages)


def check_answers(messages: Iterable[Message], history: Iterable[Message]) -> None:
    """Check that outputs in the input of a response answer calls in it or in what it continues.

    Raises:
        InvalidRequest: one does not.
    """
    called = {call.id for message in history for call in message.calls}
    for message in messages:
        called.update(call.id for call in message.calls)
        if message.answers is not None and message.answers not in called:
            raise _unknown_call(message.answers, "input")


def _message(item: Any, path: str, dialect: Dialect) -> Message | None:
    """The message that an item is or is a part of; None if a model here has no use for it."""
    kind = checked_type(item, dict, path).get("type") or _untyped(item, dialect)
    if dialect.items and isinstance(kind, str) and kind in _ITEMS:
        return _ITEMS[kind](item, path, dialect)
    if kind != "message":
        raise unsupported_parameter(f"{path}.type", f"{_quote(kind)} items are not supported; send messages")
    if not dialect.items and item.get("role") == "tool":
        _check_keys(item, path, dialect, ("role", "content", "tool_call_id"))
        text = _text(item.get("content"), f"{path}.content", dialect)
        return Message("tool", text, answers=_call_id(item.get("tool_call_id"), f"{path}.tool_call_id"))
    if not dialect.items and item.get("role") == "function":
        _check_keys(item, path, dialect, ("role", "content", "name"))
        name = checked_name(item.get("name"), f"{path}.name")
        return Message("tool", _text(item.get("content"), f"{path}.content", dialect), answers=_FUNCTION + name)
    calls = () if dialect.items or item.get("role") != "assistant" else _tool_calls(item, path)
    refusal = item.get("refusal") if item.get("role") == "assistant" else None
    known = (*(("tool_calls", "function_call") if calls else ()), *(("refusal",) if refusal else ()))
    _check_keys(item, path, dialect, ("role", "content", "type", *known))
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid_value(f"{path}.role", f"{_quote(role)} is not one of {', '.join(_ROLES)}")
    content = item.get("content")
    if refusal and not content:
        return Message("assistant", checked_type(refusal, str, f"{path}.refusal"), calls)
    if calls and content is None:
        return Message("assistant", "", calls)
    return Message(_ROLES[role], _text(content, f"{path}.content", dialect), calls)


def _tool_calls(item: dict[str, Any], path: str) -> tuple[ToolCall, ...]:
    """The `tool_calls` of a chat completion's assistant, or its one `function_call` of the older kind."""
    value, older = item.get("tool_calls"), item.get("function_call")
    if isinstance(older, dict) and not value:
        path = f"{path}.function_call"
        name = checked_name(older.get("name"), f"{path}.name")
        return (ToolCall(_FUNCTION + name, name, checked_type(older.get("arguments"), str, f"{path}.arguments")),)
    if value is None:
        return ()
    path = f"{path}.tool_calls"
    calls = enumerate(checked_type(value, list, path))
    return tuple(_tool_call(call, f"{path}[{index}]") for index, call in calls)


def _tool_call(value: Any, path: str) -> ToolCall:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or value.get("type", "function") != "function":
        raise invalid_value(path, "expected the call of a function")
    return ToolCall(
        _call_id(value.get("id"), f"{path}.id"),
        checked_name(function.get("name"), f"{path}.function.name"),
        checked_type(function.get("arguments"), str, f"{path}.function.arguments"),
    )


def _function_call(item: dict[str, Any], path: str, dialect: Dialect) -> Message:
    _check_keys(item, path, dialect, ("type", "call_id", "name", "arguments"))
    call = ToolCall(
        _call_id(item.get("call_id"), f"{path}.call_id"),
        checked_name(item.get("name"), f"{path}.name"),
        checked_type(item.get("arguments"), str, f"{path}.arguments"),
    )
    return Message("assistant", "", (call,))


def _function_output(item: dict[str, Any], path: str, dialect: Dialect) -> Message:
    _check_keys(item, path, dialect, ("type", "call_id", "output", "name"))
    text = _text(item.get("output"), f"{path}.output", dialect)
    return Message("tool", text, answers=_call_id(item.get("call_id"), f"{path}.call_id"))


def _untyped(item: dict[str, Any], dialect: Dialect) -> str:
    """The type of an item without one: OpenAI's references need none."""
    return "item_reference" if dialect.items and item.keys() <= {"id", "type"} else "message"


def _reference(item: dict[str, Any], path: str, dialect: Dialect) -> Message:
    _check_keys(item, path, dialect, ("type", "id"))
    id = checked_type(item.get("id"), str, f"{path}.id")
    if not 1 <= len(id) <= MAX_ITEM_ID:
        raise invalid_value(f"{path}.id", f"expected the id of an item, 1 to {MAX_ITEM_ID} characters")
    return Message("assistant", "", reference=id)


def _compaction(item: dict[str, Any], path: str, dialect: Dialect) -> Message:
    _check_keys(item, path, dialect, ("type", "encrypted_content"))
    return Message("user", "", compacted=checked_type(item.get("encrypted_content"), str, f"{path}.encrypted_content"))


def _nothing(item: dict[str, Any], path: str, dialect: Dialect) -> None:
    """What another model thought before its answer means nothing to those here."""


_ITEMS: dict[str, Callable[[dict[str, Any], str, Dialect], Message | None]] = {
    "compaction": _compaction,
    "function_call": _function_call,
    "function_call_output": _function_output,
    "item_reference": _reference,
    "reasoning": _nothing,
}


def _check_keys(item: dict[str, Any], path: str, dialect: Dialect, known: tuple[str, ...]) -> None:
    for key, value in item.items():
        where = f"{path}.{key}"
        if key in known or key in dialect.keys:
            continue
        if key not in dialect.unserved:
            raise unknown_parameter(where)
        if value not in (None, []):
            raise unsupported_parameter(where, "not supported by this server. Leave it out.")


def _text(content: Any, path: str, dialect: Dialect) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid_value(path, f"expected a string or a list of parts, got {type_name(content)}")
    return "\n".join(_part(part, f"{path}[{index}]", dialect) for index, part in enumerate(content))


def _part(part: Any, path: str, dialect: Dialect) -> str:
    kind = checked_type(part, dict, path).get("type")
    if kind not in dialect.parts:
        served = " or ".join(dialect.parts)
        if kind in _IMAGES:
            said = f"Invalid content type. {kind} is only supported by certain models, and by none here; send {served}"
        else:
            said = f"{_quote(kind)} parts are not supported; send {served}"
        raise unsupported_parameter(f"{path}.type", said)
    key = "refusal" if kind == "refusal" else "text"
    return checked_type(part.get(key), str, f"{path}.{key}")


def _call_id(value: Any, path: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_CALL_ID:
        raise invalid_value(path, f"expected the id of a call, 1 to {MAX_CALL_ID} characters")
    return value


def _unknown_call(call_id: str, path: str) -> InvalidRequest:
    return invalid_value(path, f"no call with id {_quote(call_id)} comes before this output")


def _quote(value: Any) -> str:
    """A client's value in a message, at most 80 characters of it."""
    return repr(value)[:80]
