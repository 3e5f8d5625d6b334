"""Parses Anthropic's `system` and `messages`: text, calls and their results as content blocks.

An output of a tool is a block of the user's message there; here it is a message of its own. Neighbouring messages of
one role are one message, as Anthropic has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.errors import InvalidRequest, invalid_value, missing_parameter, unsupported_parameter
from gateway.protocol.messages import MAX_CALL_ID
from gateway.protocol.output_format import checked_name, checked_type, type_name
from gateway.protocol.requests import Message, ToolCall

_ROLES = ("user", "assistant", "system")
_THOUGHTS = ("thinking", "redacted_thinking")
"""Blocks of an assistant's earlier answer that templates here have no place for."""


def parse_conversation(system: Any, items: list[Any]) -> tuple[Message, ...]:
    """Return the messages of a conversation, that of the `system` prompt included.

    A system message before the first answer belongs to that prompt: Claude Code sends one behind the question, where
    models expect the question.

    Raises:
        InvalidRequest: the message begins with the path of what is wrong or not served.
    """
    prompt = "" if system is None else _text(system, "system")
    messages: list[Message] = []
    called: set[str] = set()
    for index, item in enumerate(items):
        path = f"messages[{index}]"
        for message in _messages(item, path):
            if message.answers is not None and message.answers not in called:
                raise invalid_value(path, f"no tool_use with id {message.answers!r:.80} comes before this tool_result")
            called.update(call.id for call in message.calls)
            messages.append(message)
    if not messages:
        raise invalid_value("messages", "empty; send at least one message")
    answer = next((at for at, message in enumerate(messages) if message.role == "assistant"), len(messages))
    messages[:answer] = sorted(messages[:answer], key=lambda message: message.role != "system")
    return tuple(_joined([Message("system", prompt), *messages] if prompt else messages))


def _joined(messages: Iterable[Message]) -> Iterator[Message]:
    """Join neighbouring texts of one role."""
    last: Message | None = None
    for message in messages:
        if last is not None and last.role == message.role != "tool":
            text = "\n".join(text for text in (last.content, message.content) if text)
            last = replace(last, content=text, calls=last.calls + message.calls)
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last


def _messages(item: Any, path: str) -> Iterator[Message]:
    """Yield what one of Anthropic's messages holds: results of tools in their order, and the text around them."""
    fields = checked_type(item, dict, path)
    role, content = fields.get("role"), fields.get("content")
    if role not in _ROLES:
        raise invalid_value(f"{path}.role", f"{role!r:.80} is not one of {', '.join(_ROLES)}")
    for key in fields.keys() - {"role", "content"}:
        raise invalid_value(f"{path}.{key}", "a message has a role and content")
    if isinstance(content, str):
        yield Message(role, content)
        return
    if not isinstance(content, list):
        raise invalid_value(f"{path}.content", f"expected a string or a list of blocks, got {type_name(content)}")
    for index, block in enumerate(content):
        yield from _block(block, role, f"{path}.content[{index}]")


def _block(value: Any, role: Any, path: str) -> Iterator[Message]:
    block = checked_type(value, dict, path)
    match block.get("type"):
        case "text":
            yield Message(role, checked_type(block.get("text"), str, f"{path}.text"))
        case "tool_use" if role == "assistant":
            arguments = checked_type(block.get("input"), dict, f"{path}.input")
            call = ToolCall(
                _id(block, "id", path),
                checked_name(block.get("name"), f"{path}.name"),
                msgspec.json.encode(arguments).decode(),
            )
            yield Message("assistant", "", (call,))
        case "tool_result" if role == "user":
            text = _text(block.get("content", ""), f"{path}.content")
            said = f"Error: {text}" if block.get("is_error") is True else text
            yield Message("tool", said, answers=_id(block, "tool_use_id", path))
        case kind if kind in _THOUGHTS and role == "assistant":
            return
        case kind:
            raise _unsupported(kind, path)


def _text(content: Any, path: str) -> str:
    """Return a text, or the texts of blocks of which none may be anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid_value(path, f"expected a string or a list of text blocks, got {type_name(content)}")
    texts = []
    for index, block in enumerate(content):
        where = f"{path}[{index}]"
        kind = checked_type(block, dict, where).get("type")
        if kind != "text":
            raise _unsupported(kind, where)
        texts.append(checked_type(block.get("text"), str, f"{where}.text"))
    return "\n".join(texts)


def _id(block: dict[str, Any], key: str, path: str) -> str:
    value = block.get(key)
    if value is None:
        raise missing_parameter(f"{path}.{key}")
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_CALL_ID:
        raise invalid_value(f"{path}.{key}", f"expected the id of a call, 1 to {MAX_CALL_ID} characters")
    return value


def _unsupported(kind: Any, path: str) -> InvalidRequest:
    return unsupported_parameter(
        f"{path}.type", f"{kind!r:.80} blocks are not supported here; send text, or the calls and results of tools"
    )
