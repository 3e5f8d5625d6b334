"""`/v1/prompts`: prompts that a tenant's admins write for everybody who chats for it. OpenAI has no such endpoint."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.access.directory.change import Note
from gateway.access.identity import Principal, Scope
from gateway.errors import ApiError, Forbidden, PreconditionRequired
from gateway.http.chats import counted_owner
from gateway.http.exchange import JsonResponse, read_parameters, revision_read
from gateway.protocol.prompts import DeletedPrompt, PromptList, PromptObject, PromptWrite
from gateway.protocol.requests import converted
from gateway.services import Gateway, gateway_of
from gateway.turns.prompts import new_id

_WRITES: Scope = "admin:write"


async def list_prompts(request: Request) -> Response:
    """`GET /v1/prompts`."""
    gateway, principal = await _caller(request, "chat")
    prompts = await gateway.prompts.all_of(principal.tenant)
    return JsonResponse(PromptList(prompts, may_change=_WRITES in principal.scopes))


async def create(request: Request) -> Response:
    """`POST /v1/prompts`."""
    gateway, principal = await _caller(request, _WRITES)
    given = converted(await read_parameters(request, principal, PromptWrite), PromptWrite)
    id = new_id()
    async with _audited(gateway, principal, "prompt.create", id):
        prompt = await gateway.prompts.create(principal.tenant, id, given)
    return _answer(prompt, 201)


async def read(request: Request) -> Response:
    """`GET /v1/prompts/{prompt_id}`."""
    gateway, principal = await _caller(request, "chat")
    return _answer(await gateway.prompts.read(principal.tenant, request.path_params["prompt_id"]))


async def change(request: Request) -> Response:
    """`POST /v1/prompts/{prompt_id}`: changes what was read (`If-Match`)."""
    gateway, principal = await _caller(request, _WRITES)
    id = request.path_params["prompt_id"]
    given = converted(await read_parameters(request, principal, PromptWrite), PromptWrite)
    read = _revision_read(request)
    await gateway.prompts.check(principal.tenant, id)
    async with _audited(gateway, principal, "prompt.update", id):
        prompt = await gateway.prompts.change(principal.tenant, id, read, given)
    return _answer(prompt)


async def delete(request: Request) -> Response:
    """`DELETE /v1/prompts/{prompt_id}`: deletes what was read (`If-Match`)."""
    gateway, principal = await _caller(request, _WRITES)
    id = request.path_params["prompt_id"]
    read = _revision_read(request)
    await gateway.prompts.check(principal.tenant, id)
    async with _audited(gateway, principal, "prompt.delete", id):
        await gateway.prompts.delete(principal.tenant, id, read)
    return JsonResponse(DeletedPrompt(id))


_PATH = "/v1/prompts/{prompt_id}"

routes: list[BaseRoute] = [
    Route("/v1/prompts", list_prompts, methods=["GET"]),
    Route("/v1/prompts", create, methods=["POST"]),
    Route(_PATH, read, methods=["GET"]),
    Route(_PATH, change, methods=["POST"]),
    Route(_PATH, delete, methods=["DELETE"]),
]


async def _caller(request: Request, scope: Scope) -> tuple[Gateway, Principal]:
    """Return the gateway, and who asks.

    Raises:
        Forbidden: the caller lacks the scope, or acts for no tenant.
        RateLimited: too often.
    """
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, scope)
    if not principal.tenant:
        raise Forbidden("prompts belong to a tenant; use a key of that tenant")
    await counted_owner(gateway, principal)
    return gateway, principal


def _revision_read(request: Request) -> int:
    """Return the revision that a change is meant for.

    Raises:
        PreconditionRequired: the request does not say it.
    """
    read = revision_read(request)
    if read is None:
        raise PreconditionRequired(
            "changing or deleting a prompt needs the header If-Match with the ETag that reading it gave, so that "
            "nobody's change is lost unseen",
            param="If-Match",
        )
    return read


@contextlib.asynccontextmanager
async def _audited(gateway: Gateway, principal: Principal, action: str, id: str) -> AsyncIterator[None]:
    """Write a change into the audit log before it is made, and once more if it fails. Nothing of the text is in it.

    Raises:
        Unavailable: it cannot be written; nothing is changed.
    """

    async def note(action: str) -> None:
        noted = Note(action, id, principal.tenant, {"prompt": "changed"})
        await gateway.directory.apply([noted], actor=principal.actor)

    await note(action)
    try:
        yield
    except ApiError:
        with contextlib.suppress(ApiError):
            await note(f"{action}.failed")
        raise


def _answer(prompt: PromptObject, status: int = 200) -> Response:
    return JsonResponse(prompt, status_code=status, headers={"etag": f'"{prompt.revision}"'})
