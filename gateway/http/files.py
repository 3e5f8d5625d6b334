"""`/v1/files`: files that hold the requests of batches, and their results."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.access.identity import Principal
from gateway.batches.files import FileUpload, StoredFile
from gateway.batches.state import ExpiresAfter
from gateway.errors import NotFound, TooLarge, UnsupportedMediaType, invalid_value, unsupported_parameter
from gateway.http.exchange import JsonResponse, ServerSentEvents
from gateway.http.forms import Form
from gateway.protocol.pages import list_page, page_of
from gateway.protocol.requests import converted
from gateway.services import Gateway, gateway_of
from gateway.storage.connect import unavailable_without_redis

PATH = "/v1/files"

_PARTS = {"purpose": 64, "expires_after[anchor]": 64, "expires_after[seconds]": 64}
"""Parts of an upload beside the file, and their most bytes."""
_FRAMING = 16_384
"""Bytes that an upload may have beside its file."""
_OTHERS = ("assistants", "evals", "fine-tune", "user_data", "vision")
"""Purposes of OpenAI's that are not served."""


class FileForm(Struct, rename={"anchor": "expires_after[anchor]", "seconds": "expires_after[seconds]"}):
    """The parts of an upload."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    purpose: Literal["batch"]
    anchor: Literal["created_at"] | UnsetType = UNSET
    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)] | UnsetType = UNSET


class FilesPage(Struct, forbid_unknown_fields=True):
    """The page of files that a query asks for."""

    after: Annotated[str, Meta(max_length=128)] | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: Annotated[str, Meta(max_length=64)] | None = None


class FileContent(ServerSentEvents):
    """The content of a file, which is sent piece by piece."""

    media_type = "application/octet-stream"


async def create(request: Request) -> Response:
    """`POST /v1/files`."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    content_type = request.headers.get("content-type", "")
    if not content_type.lower().startswith("multipart/form-data"):
        raise UnsupportedMediaType("files are sent as multipart/form-data", param="content-type")
    settings = gateway.settings.batches
    upload = FileUpload(gateway.batches.files, principal.tenant, settings)
    most = settings.max_file_bytes + _FRAMING
    came = 0

    def observe(count: int) -> None:
        nonlocal came
        came += count
        if came > most:
            raise TooLarge(f"the body may have {most} bytes; split the file", param="file")

    form = Form(
        content_type,
        sinks={"file": upload},
        limits={"file": settings.max_file_bytes, **_PARTS},
        optional=[name for name in _PARTS if name != "purpose"],
        observe=observe,
    )
    with unavailable_without_redis("files cannot be stored"):
        try:
            await form.read(request.stream(), patience=gateway.settings.server.send_timeout)
            _check_purpose(_text(form, "purpose"))
            file = await upload.finish(form.filenames["file"][:255] or "file", "batch", _seconds(form))
        except BaseException:
            await upload.abandon()
            raise
    return JsonResponse(file.shown())


async def index(request: Request) -> Response:
    """`GET /v1/files`."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    page = converted(dict(request.query_params), FilesPage, strict=False)
    with unavailable_without_redis("files cannot be listed"):
        files = await gateway.batches.files.every(principal.tenant)
    if page.order == "asc":
        files.reverse()
    wanted = {file.id: file for file in files if page.purpose in (None, file.purpose)}
    shown, more = page_of(wanted, page.after, page.limit)
    return JsonResponse(list_page([file.shown() for file in shown.values()], more=more))


async def read(request: Request) -> Response:
    """`GET /v1/files/{id}`."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    return JsonResponse((await find(gateway, principal, request.path_params["id"])).shown())


async def content(request: Request) -> Response:
    """`GET /v1/files/{id}/content`."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    file = await find(gateway, principal, request.path_params["id"])
    return FileContent(
        gateway.batches.files.content(principal.tenant, file),
        close=lambda: None,
        send_timeout=gateway.settings.server.send_timeout,
        headers={"content-length": str(file.bytes)},
    )


async def delete(request: Request) -> Response:
    """`DELETE /v1/files/{id}`."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    id = request.path_params["id"]
    with unavailable_without_redis("files cannot be deleted"):
        if not await gateway.batches.files.delete(principal.tenant, id):
            raise _not_found(id)
    return JsonResponse({"id": id, "object": "file", "deleted": True})


routes: list[BaseRoute] = [
    Route(PATH, create, methods=["POST"]),
    Route(PATH, index, methods=["GET"]),
    Route(f"{PATH}/{{id}}", read, methods=["GET"]),
    Route(f"{PATH}/{{id}}", delete, methods=["DELETE"]),
    Route(f"{PATH}/{{id}}/content", content, methods=["GET"]),
]


async def find(gateway: Gateway, principal: Principal, id: str, param: str | None = None) -> StoredFile:
    """Return a file of the caller's tenant. Args: param: the parameter that names it.

    Raises:
        NotFound: there is none, or not any more.
        Unavailable: Redis does not answer.
    """
    with unavailable_without_redis("files cannot be read"):
        file = await gateway.batches.files.get(principal.tenant, id)
    if file is None:
        raise _not_found(id, param)
    return file


def _not_found(id: str, param: str | None = None) -> NotFound:
    message = f"no file {id[:80]!r}; it is unknown, deleted, or no longer kept"
    return NotFound(message, param=param, code="file_not_found")


def _check_purpose(purpose: str) -> None:
    if purpose in _OTHERS:
        raise unsupported_parameter("purpose", f"{purpose!r} is not supported by this server; it may be 'batch'")
    if purpose != "batch":
        raise invalid_value("purpose", "expected 'batch'")


def _text(form: Form, name: str) -> str:
    return bytes(form.values.get(name, b"")).decode("utf-8", "replace")


def _seconds(form: Form) -> int | None:
    """Return the seconds that an upload asks its file to be kept."""
    given = {
        field: _text(form, f"expires_after[{field}]")
        for field in ("anchor", "seconds")
        if f"expires_after[{field}]" in form.values
    }
    return converted(given, ExpiresAfter, strict=False).seconds if given else None
