"""`POST /v1/chat/completions`, OpenAI's older chat endpoint: whole answers, or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.http.choices import OPENAI, Choices, respond
from gateway.protocol.caching import Caching
from gateway.protocol.chat_completion_create import ChatCompletionCreate, parse_chat_completion_create
from gateway.protocol.choices import ChoicesRequest
from gateway.protocol.events import logprob_objects
from gateway.protocol.log import LogEntryKind, TurnLog
from gateway.protocol.stream import ArgumentsDelta, Finished, TextDelta, TokenLogprob


class ChatCompletions:
    """The format of chat completions, see `gateway.http.choices.Format`."""

    body: type[Struct] = ChatCompletionCreate
    framing = OPENAI
    prompt_field = "messages"

    def parse(self, body: Mapping[str, Any], caching: Caching) -> ChoicesRequest:
        return parse_chat_completion_create(body, caching)

    async def whole(self, choices: Choices) -> dict[str, Any]:
        await choices.ended()
        return {
            **choices.envelope("chatcmpl-", "chat.completion"),
            "service_tier": choices.routes[0].service_tier,
            "choices": [
                {
                    "index": index,
                    "message": _message(log),
                    "logprobs": _logprobs(choices, log.logprobs),
                    "finish_reason": _finish_reason(log),
                }
                for index, log in enumerate(choices.logs)
            ],
            "usage": choices.usage(),
        }

    async def chunks(self, choices: Choices) -> AsyncIterator[dict[str, Any]]:
        begun = set()
        async for index, entry in choices.entries():
            event, log = entry.event, choices.logs[index]
            call = entry.item.call if entry.item is not None else None
            called = call is not None and entry.kind is LogEntryKind.ITEM_ADDED
            if not isinstance(event, TextDelta | ArgumentsDelta | Finished) and not called:
                continue
            if index not in begun:
                begun.add(index)
                yield _chunk(choices, index, {"role": "assistant", "content": None if called else ""})
            if isinstance(event, Finished):
                yield _chunk(choices, index, {}, finish_reason=_finish_reason(log))
            elif isinstance(event, TextDelta):
                if event.text or event.logprobs:
                    yield _chunk(choices, index, {"content": event.text}, _logprobs(choices, event.logprobs))
            elif entry.item is not None and call is not None:
                change: dict[str, Any] = {"index": log.calls.index(entry.item)}
                if called:
                    change |= {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
                elif isinstance(event, ArgumentsDelta):
                    change |= {"function": {"arguments": event.text}}
                yield _chunk(choices, index, {"tool_calls": [change]})
        if choices.request.include_usage:
            yield {**_envelope(choices), "choices": [], "usage": choices.usage()}


async def create(request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    return await respond(request, ChatCompletions())


routes: list[BaseRoute] = [Route("/v1/chat/completions", create, methods=["POST"])]


def _message(log: TurnLog) -> dict[str, Any]:
    text, calls = log.text, log.calls
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
    if calls:
        message["tool_calls"] = [
            {"id": item.call.id, "type": "function", "function": {"name": item.call.name, "arguments": item.text}}
            for item in calls
            if item.call is not None
        ]
    return message


def _finish_reason(log: TurnLog) -> str | None:
    if log.finished is None:
        return None
    return "tool_calls" if log.calls and log.finished.reason == "stop" else log.finished.reason


def _chunk(
    choices: Choices,
    index: int,
    delta: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
    return {**_envelope(choices), "choices": [choice], **choices.running_usage()}


def _envelope(choices: Choices) -> dict[str, Any]:
    return {
        **choices.envelope("chatcmpl-", "chat.completion.chunk"),
        "service_tier": choices.routes[0].service_tier,
    }


def _logprobs(choices: Choices, entries: tuple[TokenLogprob, ...]) -> dict[str, Any] | None:
    if choices.request.turns[0].sampling.logprobs is None:
        return None
    return {"content": logprob_objects(entries, with_bytes=True), "refusal": None}
