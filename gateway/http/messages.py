"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.errors import ApiError
from gateway.http.choices import Choices, Framing, respond
from gateway.http.exchange import JsonResponse, api_error, read_parameters, sse_event, while_connected
from gateway.protocol.anthropic.answers import MessageStream, message
from gateway.protocol.anthropic.errors import anthropic_error, anthropic_status
from gateway.protocol.anthropic.requests import MessageCount, MessageCreate, parse_message_count, parse_message_create
from gateway.protocol.caching import Caching
from gateway.protocol.choices import ChoicesRequest
from gateway.services import gateway_of

PATH = "/v1/messages"


class Messages:
    """The format of Anthropic's messages, see `gateway.http.choices.Format`."""

    body: type[Struct] = MessageCreate
    prompt_field = "messages"

    def __init__(self, request_id: str) -> None:
        def error_event(error: ApiError) -> bytes:
            return sse_event(anthropic_error(error, request_id), "error")

        self.framing = Framing(lambda event: sse_event(event, event["type"]), error_event)

    def parse(self, body: Mapping[str, Any], caching: Caching) -> ChoicesRequest:
        return parse_message_create(body, caching)

    async def whole(self, choices: Choices) -> dict[str, Any]:
        await choices.ended()
        return message(choices.logs[0], *_identity(choices))

    async def chunks(self, choices: Choices) -> AsyncIterator[dict[str, Any]]:
        stream: MessageStream | None = None
        async for _, entry in choices.entries():
            stream = stream or MessageStream(choices.logs[0], *_identity(choices))
            for event in stream.events(entry):
                yield event


async def create(request: Request) -> Response:
    """`POST /v1/messages`."""
    response = await respond(request, Messages(_request_id(request)))
    response.headers["request-id"] = _request_id(request)
    return response


async def count_tokens(request: Request) -> Response:
    """`POST /v1/messages/count_tokens`: of the longest prompt, where `auto` may mean several models."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    asked = parse_message_count(await read_parameters(request, principal, MessageCount))

    async def counted() -> Response:
        prompts = await gateway.turns.count(asked, principal)
        body = {"input_tokens": max(map(len, prompts.values()))}
        return JsonResponse(body, headers={"request-id": _request_id(request)})

    return await while_connected(request.receive, counted())


async def on_error(request: Request, error: Exception) -> Response:
    """Answer an error below `PATH` in Anthropic's shape."""
    told, id = api_error(request, error), _request_id(request)
    headers = {**told.headers, "request-id": id}
    return JsonResponse(anthropic_error(told, id), status_code=anthropic_status(told), headers=headers)


routes: list[BaseRoute] = [
    Route(PATH, create, methods=["POST"]),
    Route(f"{PATH}/count_tokens", count_tokens, methods=["POST"]),
]


def _identity(choices: Choices) -> tuple[str, str]:
    """Return the message's id, and the name of the model that answers."""
    envelope = choices.envelope("msg_", "message")
    return envelope["id"], envelope["model"]


def _request_id(request: Request) -> str:
    id: str = request.state.request_id
    return id
