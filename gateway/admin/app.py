"""The admin API as an application of its own: mounted at `/admin`, or served alone on `admin.listen`."""

from __future__ import annotations

import functools

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route

from gateway.admin.endpoints import adapters, audit, caches, jobs, keys, models, pools, prices, tenants, usage, users
from gateway.admin.endpoints import routes as route_records
from gateway.admin.kit.dispatch import routes
from gateway.admin.kit.endpoints import Endpoint, Endpoints
from gateway.admin.kit.handlers import on_api_error, on_exception, on_http_exception
from gateway.admin.kit.openapi import description
from gateway.errors import ApiError
from gateway.http.exchange import JsonResponse
from gateway.http.page import HEADERS, STATIC, PageFiles

GROUPS: tuple[Endpoints, ...] = (
    tenants.endpoints,
    users.endpoints,
    keys.endpoints,
    prices.endpoints,
    route_records.endpoints,
    models.endpoints,
    adapters.endpoints,
    jobs.endpoints,
    pools.endpoints,
    caches.endpoints,
    usage.endpoints,
    audit.endpoints,
)
"""Everything that the admin API offers, in the order in which it is shown."""

ENDPOINTS: tuple[Endpoint, ...] = tuple(endpoint for group in GROUPS for endpoint in group.all)


def create_admin_app() -> Starlette:
    """The application; `state.gateway` is set by whoever runs it. Its paths begin below `/admin`."""
    return Starlette(
        routes=[
            Route("/", page),
            Route("/v1/openapi.json", openapi),
            Mount("/static", PageFiles(directory=STATIC)),
            *routes(ENDPOINTS),
        ],
        exception_handlers={
            ApiError: on_api_error,
            HTTPException: on_http_exception,
            Exception: on_exception,
        },
    )


async def page(request: Request) -> Response:
    """The API to browse and to try."""
    return FileResponse(STATIC / "admin" / "index.html", headers=HEADERS)


async def openapi(request: Request) -> Response:
    """What there is; no secret, so that no key is needed."""
    return JsonResponse(_document(), headers={"cache-control": "no-cache"})


_document = functools.cache(lambda: description(GROUPS))
