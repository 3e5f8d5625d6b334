"""The admin API as an application of its own: mounted at `/admin`, or served alone on `admin.listen`."""

from __future__ import annotations

import functools
import importlib.metadata

from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from gateway.admin.call import admit, audience
from gateway.admin.endpoints import (
    adapters,
    audit,
    caches,
    comments,
    decisions,
    jobs,
    keys,
    live,
    me,
    models,
    overview,
    own_quotas,
    plan,
    pools,
    prices,
    sessions,
    settings,
    tenants,
    turns,
    usage,
    users,
)
from gateway.admin.endpoints import routes as route_records
from gateway.admin.handlers import on_error
from gateway.admin.kit.dispatch import routes
from gateway.admin.kit.endpoints import Api
from gateway.admin.kit.openapi import description
from gateway.errors import ApiError, Forbidden, NotFound, PreconditionFailed, RateLimited, Unauthorized, Unavailable
from gateway.http.exchange import JsonResponse
from gateway.http.page import FILES

_INTRODUCTION = """What an operator, or an admin of one tenant, sees and changes while the gateway runs.

Every request carries `Authorization: Bearer <key>`: a key with the scope `admin:read` for GET, else `admin:write`; or
it comes from a page of this server in a browser that has signed in.
Admins of a tenant reach what belongs to it; operators reach everything. Errors are RFC 9457 problems. What has an ETag
is changed with `If-Match`. A POST with an `Idempotency-Key` can be repeated safely for 24 hours."""

API = Api(
    prefix="/admin/v1",
    info={
        "title": "Roundhouse admin API",
        "version": importlib.metadata.version("roundhouse"),
        "summary": "Tenants, keys, quotas, prices, adapters, pools, caches, usage and the audit log.",
        "description": _INTRODUCTION,
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    groups=(
        me.endpoints,
        overview.endpoints,
        live.endpoints,
        tenants.endpoints,
        own_quotas.endpoints,
        users.endpoints,
        keys.endpoints,
        sessions.endpoints,
        prices.endpoints,
        route_records.endpoints,
        decisions.endpoints,
        models.endpoints,
        adapters.endpoints,
        jobs.endpoints,
        pools.endpoints,
        plan.endpoints,
        caches.endpoints,
        usage.endpoints,
        turns.endpoints,
        comments.endpoints,
        audit.endpoints,
        settings.endpoints,
    ),
    admit=admit,
    audience=audience,
    raises=(Unauthorized, Forbidden, RateLimited, Unavailable),
    examples=(
        Unauthorized("no API key; send the header 'Authorization: Bearer <key>'"),
        Forbidden("this needs a key with the scope admin:write"),
        NotFound("no tenant is named 'acme'"),
        PreconditionFailed('it has changed: its ETag is "18" now; read it again and repeat the change'),
        RateLimited("too many wrong keys; wait for as long as Retry-After says", retry_after=2),
    ),
)
"""Everything that the admin API offers."""


def create_admin_app() -> Starlette:
    """Make the application, whose paths begin below `/admin`. Whoever runs it sets `state.gateway`."""
    app = Starlette(
        routes=[
            Route("/", console),
            Route("/api/", explorer),
            Route("/v1/openapi.json", openapi),
            # Each page names its files relative to itself, so that any path prefix does.
            Mount("/api/static", FILES),
            Mount("/static", FILES),
            *routes(API, at="/v1"),
        ],
        exception_handlers=dict.fromkeys((ApiError, HTTPException, RedisError, TimeoutError, Exception), on_error),
    )
    app.state.api = API
    app.state.live = live.LiveStreams()
    return app


async def console(request: Request) -> Response:
    """Serve the console, in which people administer what the API administers."""
    return await FILES.page("admin/index.html", request)


async def explorer(request: Request) -> Response:
    """Serve the page on which the API can be browsed and tried."""
    return await FILES.page("admin/api/index.html", request)


async def openapi(request: Request) -> Response:
    """Serve the description. It holds no secret, so that no key is needed."""
    return JsonResponse(_document(), headers={"cache-control": "no-cache"})


_document = functools.cache(lambda: description(API))
