"""`POST /v1/responses/{id}/feedback`: what somebody thought of a response. OpenAI has no such endpoint.

Ids of chat completions and completions are accepted too.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.http.exchange import JsonResponse, read_object
from gateway.protocol.requests import converted
from gateway.services import gateway_of
from gateway.turns.ids import response_id


class FeedbackCreate(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a feedback request."""

    rating: Literal["up", "down"] | None


async def create(request: Request) -> Response:
    """Record a rating of a response of the caller's tenant, or withdraw it; a response's last rating counts."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    body = converted(await read_object(request), FeedbackCreate)
    turn = await gateway.turns.find(response_id(request.path_params["id"]), principal)
    gateway.decisions.think(principal.tenant, turn.id, body.rating or "withdrawn")
    if body.rating == "down" and gateway.similar is not None:
        gateway.similar.disliked(principal.tenant, turn.id)
    return JsonResponse({"object": "response.feedback", "response_id": turn.id, "rating": body.rating})


routes: list[BaseRoute] = [Route("/v1/responses/{id}/feedback", create, methods=["POST"])]
