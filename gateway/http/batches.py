"""`/v1/batches`: requests of a file that are answered when there is room for them."""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.access.identity import Principal
from gateway.batches.files import new_id
from gateway.batches.state import BatchCreate, BatchDocument, BatchStatus
from gateway.errors import Conflict, Forbidden, NotFound, invalid_value
from gateway.http.exchange import JsonResponse, read_parameters
from gateway.http.files import find as find_file
from gateway.pipeline.service_tier import may_have
from gateway.protocol.pages import list_page, no_such_item
from gateway.protocol.requests import converted
from gateway.services import Gateway, gateway_of
from gateway.storage.connect import unavailable_without_redis

PATH = "/v1/batches"


class BatchesPage(Struct, forbid_unknown_fields=True):
    """The page of batches that a query asks for."""

    after: Annotated[str, Meta(max_length=128)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


async def create(request: Request) -> Response:
    """`POST /v1/batches`."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    asked = converted(await read_parameters(request, principal, BatchCreate), BatchCreate)
    tenant = gateway.view.tenant(principal.tenant)
    if tenant is not None and not may_have(tenant, "batch"):
        raise Forbidden("batches are served in the class `batch`, which is not among this tenant's `services`")
    file = await find_file(gateway, principal, asked.input_file_id, "input_file_id")
    if file.purpose != "batch":
        raise invalid_value("input_file_id", f"the file's purpose is {file.purpose!r}; upload one with 'batch'")
    batch = BatchDocument(
        id=new_id("batch_"),
        principal=principal,
        endpoint=asked.endpoint,
        input_file_id=file.id,
        created_at=int(time.time()),
        metadata=asked.metadata,
        output_seconds=asked.output_expires_after.seconds if asked.output_expires_after else None,
    )
    with unavailable_without_redis("batches cannot be stored"):
        batch = await gateway.batches.create(batch, request.headers.get("idempotency-key"))
    return JsonResponse(batch.shown())


async def index(request: Request) -> Response:
    """`GET /v1/batches`: the newest first."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    asked = converted(dict(request.query_params), BatchesPage, strict=False)
    with unavailable_without_redis("batches cannot be listed"):
        found = await gateway.batches.page(principal.tenant, asked.after, asked.limit)
    if found is None:
        raise no_such_item(asked.after or "")
    batches, more = found
    return JsonResponse(list_page([batch.shown() for batch in batches], more=more))


async def read(request: Request) -> Response:
    """`GET /v1/batches/{id}`."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    return JsonResponse((await _find(gateway, principal, request.path_params["id"])).shown())


async def cancel(request: Request) -> Response:
    """`POST /v1/batches/{id}/cancel`: idempotent; answers before the batch has ended."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    while True:
        batch = await _find(gateway, principal, request.path_params["id"])
        if batch.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            return JsonResponse(batch.shown())
        if batch.status not in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            raise Conflict(f"this batch is {batch.status.value} and cannot be cancelled any more")
        with unavailable_without_redis("batches cannot be cancelled"):
            await gateway.batches.move(batch, BatchStatus.CANCELLING, time.time())


routes: list[BaseRoute] = [
    Route(PATH, create, methods=["POST"]),
    Route(PATH, index, methods=["GET"]),
    Route(f"{PATH}/{{id}}", read, methods=["GET"]),
    Route(f"{PATH}/{{id}}/cancel", cancel, methods=["POST"]),
]


async def _find(gateway: Gateway, principal: Principal, id: str) -> BatchDocument:
    """
    Raises:
        NotFound: there is no such batch of the caller's tenant, or not any more.
    """
    with unavailable_without_redis("batches cannot be read"):
        batch = await gateway.batches.get(principal.tenant, id)
    if batch is None:
        raise NotFound(f"no batch {id[:80]!r}; it is unknown or no longer kept", code="batch_not_found")
    return batch
