"""`/v1/responses` over HTTP: create (JSON or a stream), read, resume, cancel, delete. See also `gateway.ws.socket`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from gateway.errors import invalid_value
from gateway.http.exchange import (
    JsonResponse,
    ServerSentEvents,
    cost_headers,
    overhead_header,
    read_parameters,
    route_headers,
    sse_event,
    while_connected,
)
from gateway.limits.readings import headers as limit_headers
from gateway.protocol.caching import from_headers
from gateway.protocol.events import wants_extensions
from gateway.protocol.input_items import input_items, parse_page
from gateway.protocol.log import LogEntryKind
from gateway.protocol.response_create import ResponseCreate, parse_response_create
from gateway.services import Gateway, gateway_of
from gateway.turns import Turn, Viewer


async def create(request: Request) -> Response:
    """`POST /v1/responses`."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    body = await read_parameters(request, principal, ResponseCreate)
    turn_request, stream = parse_response_create(body, from_headers(request.headers))
    key = request.headers.get("idempotency-key")
    viewer = await gateway.turns.start(turn_request, principal, idempotency_key=key, live=stream)
    if stream:
        return _stream(gateway, viewer, request)
    with viewer:
        return await while_connected(request.receive, whole(viewer))


async def read(request: Request) -> Response:
    """`GET /v1/responses/{id}`, and `?stream=true&starting_after=N` to resume."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    turn = await gateway.turns.find(request.path_params["id"], principal)
    if not _streamed(request):
        return JsonResponse(turn.view.response())
    gateway.metrics.connections.resumed()
    return _stream(gateway, turn.watch(_starting_after(request)), request)


async def cancel(request: Request) -> Response:
    """`POST /v1/responses/{id}/cancel`: idempotent; answers with the response once it has ended."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    turn = await gateway.turns.find(request.path_params["id"], principal)
    turn.cancel()
    with turn.watch() as viewer:
        await _ended(viewer)
    return JsonResponse(turn.view.response())


async def delete(request: Request) -> Response:
    """`DELETE /v1/responses/{id}`: forgets a response that has ended."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    id = request.path_params["id"]
    await gateway.turns.delete(id, principal)
    return JsonResponse({"id": id, "object": "response", "deleted": True})


async def items(request: Request) -> Response:
    """`GET /v1/responses/{id}/input_items`: the conversation that it answers."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    page = parse_page(dict(request.query_params))
    turn = await gateway.turns.find(request.path_params["id"], principal)
    return JsonResponse(input_items(turn.id, turn.conversation, page))


async def socket(websocket: WebSocket) -> None:
    """`WS /v1/responses`."""
    await gateway_of(websocket).connections.serve(websocket)


routes: list[BaseRoute] = [
    Route("/v1/responses", create, methods=["POST"]),
    Route("/v1/responses/{id}", read, methods=["GET"]),
    Route("/v1/responses/{id}", delete, methods=["DELETE"]),
    Route("/v1/responses/{id}/input_items", items, methods=["GET"]),
    Route("/v1/responses/{id}/cancel", cancel, methods=["POST"]),
    WebSocketRoute("/v1/responses", socket),
]


async def whole(viewer: Viewer) -> Response:
    """Wait for the end of the turn and answer with the whole response.

    Raises:
        ApiError: it has failed.
    """
    turn = viewer.turn
    await _ended(viewer)
    if turn.log.finished is not None and turn.log.finished.error is not None:
        raise turn.log.finished.error
    return JsonResponse(turn.view.response(), headers={**_headers(turn), **cost_headers([turn.log])})


async def _ended(viewer: Viewer) -> None:
    async for _ in viewer.entries():
        pass


def _stream(gateway: Gateway, viewer: Viewer, request: Request) -> Response:
    settings = gateway.settings
    events = _events(viewer, settings.turns.coalesce_window, extensions=wants_extensions(request.headers))
    send_timeout = settings.server.send_timeout
    return ServerSentEvents(events, close=viewer.close, send_timeout=send_timeout, headers=_headers(viewer.turn))


def _headers(turn: Turn) -> dict[str, str]:
    routes = [turn.log.routed] if turn.log.routed else []
    return route_headers(routes) | overhead_header([turn.trace]) | limit_headers(turn.limits())


async def _events(viewer: Viewer, coalesce: float, *, extensions: bool) -> AsyncIterator[bytes]:
    async for entry in viewer.entries(coalesce):
        if entry.kind is LogEntryKind.EVENT and not extensions:
            continue
        event = viewer.turn.view.event(entry)
        yield sse_event(event, event["type"])


def _streamed(request: Request) -> bool:
    value = request.query_params.get("stream", "false").lower()
    if value not in ("true", "1", "false", "0"):
        raise invalid_value("stream", "expected true or false")
    return value in ("true", "1")


def _starting_after(request: Request) -> int:
    value = request.query_params.get("starting_after", "-1")
    if not re.fullmatch(r"-1|[0-9]{1,15}", value):
        raise invalid_value("starting_after", "expected the sequence_number of an event")
    return int(value)
