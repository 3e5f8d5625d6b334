"""A turn's log as the objects that Ollama streams. The `ollama` package is the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.protocol.log import LogEntry, LogEntryKind
from gateway.protocol.stream import Finished, TextDelta
from gateway.protocol.tools import decoded_arguments

OllamaObject = dict[str, Any]


def chat_object(entry: LogEntry) -> OllamaObject | None:
    """Return what a log's entry adds to a chat; None if nothing."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    call = entry.item.call if entry.item is not None else None
    match entry.event:
        case TextDelta(text=text) if text:
            return {"message": message | {"content": text}, "done": False}
        case Finished() as finished:
            return {"message": message} | _done(finished)
    if call is not None and entry.item is not None and entry.kind is LogEntryKind.ITEM_DONE:
        function = {"name": call.name, "arguments": decoded_arguments(entry.item.text)}
        return {"message": message | {"tool_calls": [{"function": function}]}, "done": False}
    return None


def generate_object(entry: LogEntry) -> OllamaObject | None:
    """Return what a log's entry adds to a text; None if nothing."""
    match entry.event:
        case TextDelta(text=text) if text:
            return {"response": text, "done": False}
        case Finished() as finished:
            return {"response": ""} | _done(finished)
    return None


def whole(objects: Sequence[OllamaObject]) -> OllamaObject:
    """Return the last object of a stream with everything that those before it added."""
    last = dict(objects[-1])
    if "response" in last:
        return last | {"response": "".join(each["response"] for each in objects)}
    messages = [each["message"] for each in objects]
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    content = "".join(message["content"] for message in messages)
    return last | {"message": {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}}


def _done(finished: Finished) -> OllamaObject:
    return {
        "done": True,
        "done_reason": "length" if finished.reason == "length" else "stop",
        "prompt_eval_count": finished.usage.input_tokens,
        "eval_count": finished.usage.output_tokens,
    }
