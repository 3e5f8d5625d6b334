"""`/v1/responses` over HTTP: create (JSON or a stream), read, resume, cancel, delete, count, compact. See also
`gateway.ws.socket`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from gateway.access.identity import Principal
from gateway.errors import InvalidRequest, NotFound, Unavailable, invalid_value
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
from gateway.protocol.input_items import item_messages, items_page, parse_page
from gateway.protocol.requests import TurnRequest
from gateway.protocol.response_create import (
    ResponseCompact,
    ResponseCreate,
    parse_input_tokens,
    parse_response_compact,
    parse_response_create,
)
from gateway.services import Gateway, gateway_of
from gateway.turns import Turn, Viewer
from gateway.turns.compaction import SUMMARISE


async def create(request: Request) -> Response:
    """`POST /v1/responses`."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    body = await read_parameters(request, principal, ResponseCreate)
    turn_request, stream = parse_response_create(body, from_headers(request.headers))
    key = request.headers.get("idempotency-key")
    viewer = await gateway.turns.start(turn_request, principal, idempotency_key=key)
    if stream:
        return _stream(gateway, viewer, request)
    with viewer:
        if turn_request.background:
            return JsonResponse(viewer.turn.view.response(), headers=_headers(viewer.turn))
        return await while_connected(request.receive, whole(viewer))


async def read(request: Request) -> Response:
    """`GET /v1/responses/{id}`, and `?stream=true&starting_after=N` to resume."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    turn = await gateway.turns.find(request.path_params["id"], principal)
    if not _streamed(request):
        return JsonResponse(turn.view.response())
    gateway.metrics.connections.resumed()
    viewer = turn.resume(_starting_after(request), extensions=wants_extensions(request.headers))
    return _stream(gateway, viewer, request)


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
    """`DELETE /v1/responses/{id}`: forgets a response that has ended, and the comment on it."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    id = request.path_params["id"]
    try:
        await gateway.turns.delete(id, principal)
    except NotFound:  # it may be kept for less long than the comment, or deleting it has failed half-way
        await gateway.comments.remove(principal.tenant, id)
        raise
    await gateway.comments.remove(principal.tenant, id)
    return JsonResponse({"id": id, "object": "response", "deleted": True})


async def items(request: Request) -> Response:
    """`GET /v1/responses/{id}/input_items`: the conversation that it answers."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    page = parse_page(dict(request.query_params))
    turn = await gateway.turns.find(request.path_params["id"], principal)
    return JsonResponse(items_page(item_messages(turn.id, turn.conversation), page))


async def input_tokens(request: Request) -> Response:
    """`POST /v1/responses/input_tokens`: of the longest prompt, where `auto` may mean several models."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    asked = parse_input_tokens(await read_parameters(request, principal, ResponseCreate))

    async def counted() -> Response:
        prompts = await gateway.turns.count(asked, principal)
        return JsonResponse({"object": "response.input_tokens", "input_tokens": max(map(len, prompts.values()))})

    return await while_connected(request.receive, counted())


async def compact(request: Request) -> Response:
    """`POST /v1/responses/compact`: a summary that stands for a conversation, see `gateway.turns.compaction`."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    body = await read_parameters(request, principal, ResponseCompact)
    asked = parse_response_compact(body, SUMMARISE, from_headers(request.headers))
    return await while_connected(request.receive, _compacted(gateway, principal, asked))


async def socket(websocket: WebSocket) -> None:
    """`WS /v1/responses`."""
    await gateway_of(websocket).connections.serve(websocket)


routes: list[BaseRoute] = [
    Route("/v1/responses", create, methods=["POST"]),
    Route("/v1/responses/compact", compact, methods=["POST"]),
    Route("/v1/responses/input_tokens", input_tokens, methods=["POST"]),
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
    await _ended(viewer)
    return _answer(viewer.turn, viewer.turn.view.response())


async def _compacted(gateway: Gateway, principal: Principal, asked: TurnRequest) -> Response:
    with await gateway.turns.start(asked, principal, orphan_timeout=0) as viewer:
        await _ended(viewer)
    turn, tenant = viewer.turn, principal.tenant
    response = turn.view.response()
    if response["status"] == "cancelled":
        raise Unavailable("the server is restarting; send the request again", code="draining")
    if response["status"] != "failed" and not turn.log.text.strip():
        raise InvalidRequest("model: it wrote no summary of this; name another one", param="model")
    sealed = gateway.turns.context.compactions.close(turn.conversation[:-1], turn.log.text, tenant)
    item = {"id": turn.id.replace("resp_", "cmp_"), "type": "compaction", "encrypted_content": sealed}
    body = {name: response[name] for name in ("id", "created_at", "usage")}
    return _answer(turn, {**body, "object": "response.compaction", "output": [item]})


def _answer(turn: Turn, body: dict[str, Any]) -> Response:
    """Answer with what a turn has become.

    Raises:
        ApiError: it has failed.
    """
    if turn.log.finished is not None and turn.log.finished.error is not None:
        raise turn.log.finished.error
    return JsonResponse(body, headers={**_headers(turn), **cost_headers([turn.log])})


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
    view = viewer.turn.view
    async for batch in viewer.batches(coalesce, extensions=extensions):
        events = [view.event(entry, extensions=extensions) for entry in batch]
        yield b"".join(sse_event(event, event["type"]) for event in events)


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
