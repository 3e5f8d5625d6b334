"""`POST /v1/tickets`: a page trades its API key for a ticket that opens one WebSocket."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.access.tickets import LIFETIME
from gateway.config.origin import origin_allowed
from gateway.errors import Forbidden
from gateway.http.exchange import JsonResponse
from gateway.services import gateway_of


async def issue(request: Request) -> Response:
    """Issue a ticket; the body holds it and the seconds it lives."""
    gateway = gateway_of(request)
    origin = request.headers.get("origin")
    if not origin_allowed(origin, request.headers.get("host"), gateway.settings.server.allowed_origins):
        raise Forbidden(
            "pages of this origin get no tickets; list it in server.allowed_origins", code="origin_not_allowed"
        )
    principal = await gateway.authenticate(request, "chat")
    ticket = await gateway.tickets.issue(principal, origin)
    return JsonResponse({"object": "ticket", "ticket": ticket, "expires_in": LIFETIME}, status_code=201)


routes: list[BaseRoute] = [Route("/v1/tickets", issue, methods=["POST"])]
