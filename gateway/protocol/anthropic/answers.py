"""A turn's log as Anthropic's message, whole or as the events of a stream. The `anthropic` package is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.protocol.log import LogEntry, LogEntryKind, TurnLog
from gateway.protocol.stream import ArgumentsDelta, CallBegun, Finished, TextDelta, TokenUsage
from gateway.protocol.tools import decoded_arguments

AnthropicEvent = dict[str, Any]

_CUT = {"length": "max_tokens", "content_filter": "refusal"}


def message(log: TurnLog, id: str, model: str) -> AnthropicEvent:
    """Return the message of a turn that has ended."""
    assert log.finished is not None
    content = [
        {"type": "text", "text": item.text} if item.call is None else _tool_use(item.call, decoded_arguments(item.text))
        for item in log.items
        if item.call is not None or item.text
    ]
    return {**_message(id, model, content, log.finished.usage), **_stop(log, log.finished)}


class MessageStream:
    """Makes the events of one turn's stream."""

    def __init__(self, log: TurnLog, id: str, model: str) -> None:
        self._log = log
        self._id = id
        self._model = model
        self._begun = False
        self._index = 0
        """Number of the block that is open, or comes next."""
        self._open = False

    def events(self, entry: LogEntry) -> Iterator[AnthropicEvent]:
        """Yield the events of the log's next entry; the first ones begin the message."""
        call = entry.item.call if entry.item is not None else None
        if not self._begun and (entry.item is not None or entry.kind is LogEntryKind.FINISHED):
            self._begun = True
            routed = self._log.routed
            usage = TokenUsage(routed.input_tokens if routed else 0)
            yield {"type": "message_start", "message": _message(self._id, self._model, [], usage)}
            yield {"type": "ping"}
        match entry.event:
            case TextDelta(text=text) if text:
                if not self._open:
                    yield self._start({"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case ArgumentsDelta(text=text) if text:
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case Finished() as finished:
                yield {"type": "message_delta", "delta": _stop(self._log, finished), "usage": _usage(finished.usage)}
                yield {"type": "message_stop"}
            case _:
                pass
        if entry.kind is LogEntryKind.ITEM_ADDED and call is not None:
            yield self._start(_tool_use(call, {}))
        if entry.kind is LogEntryKind.ITEM_DONE and self._open:
            self._open = False
            self._index += 1
            yield {"type": "content_block_stop", "index": self._index - 1}

    def _start(self, block: dict[str, Any]) -> AnthropicEvent:
        self._open = True
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> AnthropicEvent:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def _message(id: str, model: str, content: list[dict[str, Any]], usage: TokenUsage) -> AnthropicEvent:
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(usage),
    }


def _stop(log: TurnLog, finished: Finished) -> dict[str, Any]:
    reason = _CUT.get(finished.reason, "tool_use" if log.calls else "end_turn")
    if finished.stop is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": finished.stop}


def _usage(usage: TokenUsage) -> dict[str, int]:
    """Return Anthropic's counts, in which input tokens are only those that no cache had."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }


def _tool_use(call: CallBegun, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}
