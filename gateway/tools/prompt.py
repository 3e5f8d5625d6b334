"""Conversations with tools as chat templates take them, and an instruction for models whose template knows no tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from gateway.protocol.nesting import MAX_LEVELS, json_depth
from gateway.protocol.requests import Message, ToolCall
from gateway.protocol.tools import Tool
from gateway.tools.formats import ToolFormat

TemplateMessage = dict[str, Any]

_INSTRUCTION = """\
You can call functions. These are their signatures, one a line, in JSON:

{tools}

To call one, write a line with its name and arguments between these tags, and one such block for each further call:

<tool_call>
{{"name": "function name", "arguments": {{"argument": "value"}}}}
</tool_call>

The results come in <tool_response> tags. Answer directly if no function helps."""

_MISTRAL_ID = 9
"""Letters and digits; Mistral's templates refuse any other length."""


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as transformers hands them to templates."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description or "", "parameters": tool.schema},
        }
        for tool in tools
    ]


def template_messages(
    messages: Sequence[Message], format: ToolFormat, tools: Sequence[Tool], instructions: str | None
) -> list[TemplateMessage]:
    """A conversation as a template of this format takes it.

    Args:
        tools: those the model is shown; only a format that is not native has them in the messages.
        instructions: system message before everything else.
    """
    system = [Message("system", instructions)] if instructions else []
    spelled = _native if format.native else _neutral
    said = spelled([*system, *messages], format)
    if tools and not format.native:
        _instruct(said, tools)
    return said


def _native(messages: Sequence[Message], format: ToolFormat) -> list[TemplateMessage]:
    names = {call.id: call.name for message in messages for call in message.calls}
    spelled = []
    for message in messages:
        shown: TemplateMessage = {"role": message.role, "content": message.content}
        if message.calls:
            shown["tool_calls"] = [_call(call, format) for call in message.calls]
        if message.answers is not None:
            shown |= {"tool_call_id": _id(message.answers, format), "name": names.get(message.answers, "")}
        spelled.append(shown)
    return spelled


def _call(call: ToolCall, format: ToolFormat) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _arguments(call)}
    return {"id": _id(call.id, format), "type": "function", "function": function}


def _arguments(call: ToolCall) -> Any:
    """Templates expect the object; what the model has left unfinished stays text."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments
    return value if isinstance(value, dict) and json_depth(value) <= MAX_LEVELS else call.arguments


def _id(call_id: str, format: ToolFormat) -> str:
    if not format.name.startswith("mistral") or (len(call_id) == _MISTRAL_ID and call_id.isalnum()):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_MISTRAL_ID]


def _neutral(messages: Sequence[Message], format: ToolFormat) -> list[TemplateMessage]:
    """Calls and outputs written out, for templates that know neither: outputs are what the user says next."""
    spelled: list[TemplateMessage] = []
    outputs = 0
    for message in messages:
        blocks = [message.content] if message.content or not message.calls else []
        blocks += [f"<tool_call>\n{_written(call)}\n</tool_call>" for call in message.calls]
        if message.role != "tool":
            spelled.append({"role": message.role, "content": "\n".join(blocks)})
            outputs = 0
            continue
        content = f"<tool_response>\n{message.content}\n</tool_response>"
        if outputs:  # of the same answer's calls: one message, as templates may insist on alternating roles
            spelled[-1]["content"] += f"\n{content}"
        else:
            spelled.append({"role": "user", "content": content})
        outputs += 1
    return spelled


def _written(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": _arguments(call)}, ensure_ascii=False)


def _instruct(messages: list[TemplateMessage], tools: Sequence[Tool]) -> None:
    """Put the instruction into the first system message, or before everything if there is none."""
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in template_tools(tools))
    instruction = _INSTRUCTION.format(tools=lines)
    if messages and messages[0]["role"] == "system":
        messages[0]["content"] += f"\n\n{instruction}"
    else:
        messages.insert(0, {"role": "system", "content": instruction})
