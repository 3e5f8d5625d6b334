"""The events of the Responses protocol: their names, and how a turn's log becomes them.

The types in the `openai` package are the specification; the tests validate every event made here against them.
Everything in the `roundhouse.` namespace is ours, and sent only to clients that ask for it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from engine.text.processor import SamplingDefaults
from gateway.errors import ApiError
from gateway.protocol.items import ItemState, OutputItem
from gateway.protocol.log import LogEntry, LogEntryKind, TurnLog
from gateway.protocol.output_format import TEXT
from gateway.protocol.requests import TurnRequest
from gateway.protocol.stream import (
    ArgumentsDelta,
    Finished,
    LimitState,
    Routed,
    TextDelta,
    TokenLogprob,
    TokenUsage,
    TurnEvent,
)
from gateway.protocol.tools import Tool
from router.options import TierOption

Event = dict[str, Any]


class ClientEventType(enum.StrEnum):
    """Types of the events that a client may send over the WebSocket."""

    CREATE = "response.create"
    CANCEL = "response.cancel"
    RESUME = "response.resume"
    STEER = "response.steer"


class ServerEventType(enum.StrEnum):
    """Types of the events that the server sends: all of them over the WebSocket, those of one response over SSE."""

    CREATED = "response.created"
    QUEUED = "response.queued"
    IN_PROGRESS = "response.in_progress"
    ITEM_ADDED = "response.output_item.added"
    PART_ADDED = "response.content_part.added"
    DELTA = "response.output_text.delta"
    TEXT_DONE = "response.output_text.done"
    ARGUMENTS_DELTA = "response.function_call_arguments.delta"
    ARGUMENTS_DONE = "response.function_call_arguments.done"
    PART_DONE = "response.content_part.done"
    ITEM_DONE = "response.output_item.done"
    COMPLETED = "response.completed"
    INCOMPLETE = "response.incomplete"
    FAILED = "response.failed"
    STEER_FAILED = "response.steer.failed"
    ERROR = "error"
    ROUTE = "roundhouse.route"
    LIMITS = "roundhouse.limits"
    DRAINING = "roundhouse.draining"


class CloseCode(enum.IntEnum):
    """Why the server closes a WebSocket. 4000 to 4999 are ours, the others RFC 6455's and IANA's."""

    GOING_AWAY = 1001
    """The connection reached its lifetime; an `error` event said so before."""
    INVALID_UTF8 = 1007
    """A text message was not UTF-8."""
    TOO_BIG = 1009
    """A message was larger than `server.max_message_bytes`."""
    INTERNAL_ERROR = 1011
    """A fault of the server, or no answer to its keep-alive pings."""
    RESTART = 1012
    """The server drains; connect again."""
    BAD_MESSAGE = 4400
    """Too many malformed messages in a row."""
    SIGNED_OUT = 4401
    """The browser session by which the client was known has ended."""
    TIMEOUT = 4408
    """No first message, or no message and no turn for too long."""
    SLOW_CONSUMER = 4503
    """The client left its socket unread for `server.send_timeout`; it can resume on a new connection."""


EVENTS_HEADER = "x-roundhouse-events"
"""Header by which a request or a WebSocket's handshake asks for the events in our namespace."""


def wants_extensions(headers: Mapping[str, str]) -> bool:
    """Whether a client asks for events that OpenAI does not have: some clients take one for a fault."""
    return headers.get(EVENTS_HEADER, "").strip().lower() in ("true", "1")


def error_event(error: ApiError, stream_id: str | None = None) -> Event:
    """Return an `error` event, the WebSocket's counterpart of an HTTP error response."""
    body = error.body()
    if error.headers:
        body["headers"] = error.headers
    return with_stream_id({"type": ServerEventType.ERROR, "status": error.status, "error": body}, stream_id)


def with_stream_id(event: Event, stream_id: str | None) -> Event:
    """Mark an event with the lane of the `response.create` that caused it, if that named one."""
    if stream_id is not None:
        event["stream_id"] = stream_id
    return event


class ResponseView:
    """Shows one turn as OpenAI's `Response` object and stream events. Holds no state beside the turn's own."""

    def __init__(self, response_id: str, created_at: int, request: TurnRequest, log: TurnLog) -> None:
        self._id = response_id
        self._created_at = created_at
        self.request = request
        self._log = log
        self.completed_at: int | None = None

    def event(self, entry: LogEntry, *, extensions: bool = True) -> Event:
        """Return the stream event of one log entry.

        Args:
            extensions: whether the stream has our own events too, and its numbers count them.
        """
        event = self._body(entry)
        event["sequence_number"] = entry.sequence if extensions else self._log.number_of(entry.sequence)
        return event

    def response(self) -> Event:
        """Return the `Response` object as it stands now."""
        finished = self._log.finished
        if finished is None:
            waiting = self.request.background and self._log.routed is None
            status = "queued" if waiting else "in_progress"
            return self._response(status, [self._item(item) for item in self._log.items])
        return self._final(finished)

    def _body(self, entry: LogEntry) -> Event:
        match entry.kind:
            case LogEntryKind.CREATED:
                status = "queued" if self.request.background else "in_progress"
                return {"type": ServerEventType.CREATED, "response": self._response(status, [])}
            case LogEntryKind.QUEUED:
                return {"type": ServerEventType.QUEUED, "response": self._response("queued", [])}
            case LogEntryKind.IN_PROGRESS:
                return {"type": ServerEventType.IN_PROGRESS, "response": self._response("in_progress", [])}
            case LogEntryKind.EVENT:
                return self._extension(entry)
            case LogEntryKind.FINISHED:
                finished = cast(Finished, entry.event)
                return {"type": _TERMINAL[finished.reason], "response": self._final(finished)}
            case kind:
                return self._about_item(kind, cast(OutputItem, entry.item), entry.event)

    def _about_item(self, kind: LogEntryKind, item: OutputItem, delta: TurnEvent | None) -> Event:
        at: Event = {"output_index": item.index}
        in_item = {**at, "item_id": self.item_id(item)}
        in_part = {**in_item, "content_index": 0}
        match kind, delta:
            case LogEntryKind.ITEM_ADDED, _:
                return {"type": ServerEventType.ITEM_ADDED, **at, "item": self._item(item, begun=True)}
            case LogEntryKind.PART_ADDED, _:
                return {"type": ServerEventType.PART_ADDED, **in_part, "part": self._part("", ())}
            case LogEntryKind.DELTA, TextDelta():
                logprobs = logprob_objects(delta.logprobs, with_bytes=False)
                return {"type": ServerEventType.DELTA, **in_part, "delta": delta.text, "logprobs": logprobs}
            case LogEntryKind.DELTA, ArgumentsDelta():
                return {"type": ServerEventType.ARGUMENTS_DELTA, **in_item, "delta": delta.text}
            case LogEntryKind.TEXT_DONE, _:
                logprobs = logprob_objects(item.logprobs, with_bytes=False)
                return {"type": ServerEventType.TEXT_DONE, **in_part, "text": item.text, "logprobs": logprobs}
            case LogEntryKind.PART_DONE, _:
                return {"type": ServerEventType.PART_DONE, **in_part, "part": self._part(item.text, item.logprobs)}
            case LogEntryKind.ARGUMENTS_DONE, _:
                return {"type": ServerEventType.ARGUMENTS_DONE, **in_item, "arguments": item.text}
            case LogEntryKind.ITEM_DONE, _:
                return {"type": ServerEventType.ITEM_DONE, **at, "item": self._item(item)}
        raise RuntimeError(f"{kind.name} is not about an item")

    def _extension(self, entry: LogEntry) -> Event:
        match entry.event:
            case Routed() as routed:
                return {
                    "type": ServerEventType.ROUTE,
                    "response_id": self._id,
                    "tier": routed.tier,
                    "model": routed.model,
                    "replica": routed.replica,
                    "reason": routed.reason,
                    "complexity": routed.complexity,
                    "reasons": list(routed.reasons),
                    "probabilities": routed.probabilities
                    and dict(zip(("small", "medium", "large"), routed.probabilities, strict=True)),
                    "options": [_option(option) for option in routed.options],
                    "cache": routed.cache,
                    "cache_reason": routed.cache_reason or None,
                    "scores": {
                        name: {part: round(value, 3) for part, value in msgspec.structs.asdict(score).items()}
                        for name, score in routed.scores.items()
                    },
                    **({"scores_left_out": routed.scores_left_out} if routed.scores_left_out else {}),
                }
            case LimitState() as state:
                tokens = state.tokens
                return {
                    "type": ServerEventType.LIMITS,
                    "response_id": self._id,
                    "tokens": None
                    if tokens is None
                    else {
                        "limit": tokens.limit,
                        "remaining": tokens.remaining,
                        "reset_seconds": tokens.reset_seconds,
                    },
                    "limits": [msgspec.structs.asdict(reading) for reading in state.readings],
                }
            case other:
                raise RuntimeError(f"{type(other).__name__} has no Responses event")

    def item_id(self, item: OutputItem) -> str:
        """Return the id of an item of the answer."""
        name = self._id.removeprefix("resp_") + (f"_{item.index}" if item.index else "")
        return ("msg_" if item.call is None else "fc_") + name

    def _item(self, item: OutputItem, *, begun: bool = False) -> Event:
        """Return an item; with `begun` as it was when it was opened."""
        shown: Event = {
            "id": self.item_id(item),
            "status": (ItemState.OPEN if begun else item.state).value,
            "type": "message" if item.call is None else "function_call",
        }
        if item.call is not None:
            arguments = "" if begun else item.text
            return {**shown, "call_id": item.call.id, "name": item.call.name, "arguments": arguments}
        content = [] if begun else [self._part(item.text, item.logprobs)]
        return {**shown, "role": "assistant", "content": content}

    def _part(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> Event:
        part: Event = {"type": "output_text", "text": text, "annotations": []}
        if text and self.request.sampling.logprobs is not None:
            part["logprobs"] = logprob_objects(logprobs, with_bytes=True)
        return part

    def _final(self, finished: Finished) -> Event:
        return self._response(_STATUS[finished.reason], [self._item(item) for item in self._log.items], finished)

    def _response(self, status: str, output: list[Event], finished: Finished | None = None) -> Event:
        request, routed = self.request, self._log.routed
        sampling, tools = request.sampling, request.tools
        defaults = routed.defaults if routed else SamplingDefaults()
        cut = _CUT.get(finished.reason) if finished else None
        response = {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": self.completed_at if status == "completed" else None,
            "status": status,
            "background": request.background,
            "conversation": {"id": request.conversation} if request.conversation else None,
            "error": _response_error(finished.error) if finished and finished.error else None,
            "incomplete_details": {"reason": cut} if cut else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata,
            "model": routed.model if routed else request.model,
            "output": output,
            "parallel_tool_calls": tools.parallel if tools else True,
            "previous_response_id": request.previous_response_id,
            "service_tier": routed.service_tier if routed else request.service_tier,
            "store": request.store,
            "temperature": defaults.temperature if sampling.temperature is None else sampling.temperature,
            "text": {"format": request.format.shown if request.format else TEXT},
            "tool_choice": tools.choice if tools else "auto",
            "tools": [_tool(tool) for tool in tools.tools] if tools else [],
            "top_logprobs": sampling.logprobs or 0,
            "top_p": defaults.top_p if sampling.top_p is None else sampling.top_p,
            "truncation": "auto" if request.truncate else "disabled",
            "usage": _usage(finished.usage) if finished else None,
            **request.echo,
        }
        if finished is not None and finished.cost is not None:
            response["roundhouse"] = {"cost_microdollars": finished.cost}
        return response


_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""OpenAI's words for why an answer is incomplete."""

_STATUS = {
    "stop": "completed",
    "length": "incomplete",
    "content_filter": "incomplete",
    "cancelled": "cancelled",
    "error": "failed",
}

_TERMINAL = {
    "stop": ServerEventType.COMPLETED,
    "length": ServerEventType.INCOMPLETE,
    "content_filter": ServerEventType.INCOMPLETE,
    # OpenAI's stream has no event for a cancelled response; clients that wait for one of the three terminal ones must
    # not wait for ever, and the response's status says "cancelled".
    "cancelled": ServerEventType.INCOMPLETE,
    "error": ServerEventType.FAILED,
}


def _tool(tool: Tool) -> Event:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def _usage(usage: TokenUsage) -> Event:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


def _option(option: TierOption) -> Event:
    shown = msgspec.structs.asdict(option)
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in shown.items()}


def _response_error(error: ApiError) -> Event:
    # A Response's error code comes from a closed list in OpenAI's types; the precise one stands in the message's type.
    code = {429: "rate_limit_exceeded", 400: "invalid_prompt"}.get(error.status, "server_error")
    return {"code": code, "message": error.message, "param": error.param, "type": error.code}


def logprob_objects(logprobs: tuple[TokenLogprob, ...], *, with_bytes: bool) -> list[Event]:
    """Convert log-probabilities to OpenAI's objects; their `bytes` are not part of stream events of the Responses
    API."""

    def one(entry: TokenLogprob) -> Event:
        shown: Event = {"token": entry.token, "logprob": entry.logprob}
        if with_bytes:
            shown["bytes"] = list(entry.bytes)
        return shown

    return [{**one(entry), "top_logprobs": [one(other) for other in entry.top]} for entry in logprobs]
