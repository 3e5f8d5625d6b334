"""`/v1/shares`: conversations that are shared, encrypted by the page; `/s/{share_id}`: where they are read. OpenAI has
no such endpoints."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from gateway.access.identity import Principal
from gateway.errors import Forbidden
from gateway.http.chats import counted_owner
from gateway.http.exchange import JsonResponse, read_parameters
from gateway.http.page import FILES
from gateway.protocol.requests import converted
from gateway.protocol.shares import DeletedShare, ShareCreate, ShareList
from gateway.services import Gateway, gateway_of
from gateway.turns.chats import Owner


async def create(request: Request) -> Response:
    """`POST /v1/shares`."""
    gateway, principal, owner = await _owner(request)
    if gateway.settings.chat.sharing_of(principal.tenant) == "off":
        raise _off()
    asked = converted(await read_parameters(request, principal, ShareCreate), ShareCreate)
    share = await gateway.shares.create(owner, asked.ciphertext, asked.expires_in)
    return JsonResponse(share, status_code=201)


async def list_shares(request: Request) -> Response:
    """`GET /v1/shares`: one's own."""
    gateway, _, owner = await _owner(request)
    return JsonResponse(ShareList(await gateway.shares.shared_by(owner)))


async def read(request: Request) -> Response:
    """`GET /v1/shares/{share_id}`: by callers of its tenant, or by anybody if the operator allows it."""
    gateway = gateway_of(request)
    public = gateway.settings.chat.sharing == "anyone"
    reader = None if public else (await gateway.authenticate(request, "chat")).tenant
    name, shared = await gateway.shares.read(request.path_params["share_id"], reader)
    tenant = gateway.view.tenant(name)
    if tenant is None or tenant.disabled or gateway.settings.chat.sharing_of(name) == "off":
        raise _off()
    return JsonResponse(shared, headers={"cache-control": "no-store"})


async def revoke(request: Request) -> Response:
    """`DELETE /v1/shares/{share_id}`."""
    gateway, _, owner = await _owner(request)
    id = request.path_params["share_id"]
    await gateway.shares.revoke(owner, id)
    return JsonResponse(DeletedShare(id))


async def page(request: Request) -> Response:
    """`GET /s/{share_id}`: the page that reads it."""
    return await FILES.page("shared.html", request)


_PATH = "/v1/shares/{share_id}"

routes: list[BaseRoute] = [
    Route("/v1/shares", create, methods=["POST"]),
    Route("/v1/shares", list_shares, methods=["GET"]),
    Route(_PATH, read, methods=["GET"]),
    Route(_PATH, revoke, methods=["DELETE"]),
    Mount("/s/static", FILES),
    Route("/s/{share_id}", page, methods=["GET"]),
]


async def _owner(request: Request) -> tuple[Gateway, Principal, Owner]:
    """Return the gateway, who asks, and whose conversations these are: a user's, or those of a key without one.

    Raises:
        RateLimited: too often.
    """
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    return gateway, principal, await counted_owner(gateway, principal)


def _off() -> Forbidden:
    return Forbidden("conversations of this tenant are not shared", code="sharing_off")
