"""The chat page at `/`, its files under `/static/`, the worker that opens it without its server, and what it asks of
this server at `/ui/config.json`.

Mount by adding `routes` to the application's routes. Everything the page needs comes from here: its policy allows no
other host, no inline script or style, and no string to become HTML; the one policy of trusted types makes the workers'
addresses.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from gateway.access.identity import Principal
from gateway.config.settings import DEMO_KEY, demo_settings
from gateway.http.exchange import JsonResponse
from gateway.http.page_files import PageFiles
from gateway.services import gateway_of

STATIC = Path(__file__).resolve().parent / "static"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types roundhouse-worker",
    )
)

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
}

FILES = PageFiles(STATIC, HEADERS)


async def index(request: Request) -> Response:
    """`GET /`: the chat page."""
    return await FILES.page("index.html", request)


async def worker(request: Request) -> Response:
    """`GET /service-worker.js`: beside the page, as a worker answers for addresses below its own only."""
    return await FILES.worker("index.html", "js/service-worker.js", request)


async def config(request: Request) -> Response:
    """`GET /ui/config.json`: the key of the embedded default, where the router's tiers begin, and tiers still to come.

    A key is told only while the tenants are those of the embedded default, whose key is public knowledge; otherwise
    `key` is null and the page asks its user for one, unless `signed_in` says that the browser's session may chat.
    `history` says where conversations of whoever asks are kept, `sharing` who may read those that are shared; null:
    nobody knows yet who asks. `comments` says whether they may write a comment beside a rating.
    """
    gateway = gateway_of(request)
    settings, arrivals, caller = gateway.settings, gateway.arrivals, await gateway.caller(request)
    embedded = settings.tenants == demo_settings().tenants
    if caller is None and embedded:
        [demo] = settings.tenants
        caller = Principal(demo.name, demo.keys[0].id)  # who it will be with the key that it is told
    body = {
        "key": DEMO_KEY if embedded else None,
        "signed_in": caller is not None and caller.session is not None and "chat" in caller.scopes,
        "sharing": caller and settings.chat.sharing_of(caller.tenant),
        "comments": caller is not None and settings.chat.comments_of(caller.tenant),
        "history": caller and settings.chat.history_of(caller.tenant, has_user=caller.user is not None),
        "tiers": {"medium_from": settings.router.medium_from, "large_from": settings.router.large_from},
        # In the order in which they come. Why a model cannot be fetched is for the terminal: it may name hosts.
        "coming": [msgspec.to_builtins(each) for each in arrivals.coming.values()],
        "none_fetched": arrivals.none_fetched,
    }
    return JsonResponse(body, headers={"cache-control": "no-store"})


routes: list[BaseRoute] = [
    Route("/", index),
    Route("/service-worker.js", worker),
    Route("/ui/config.json", config),
    Mount("/static", FILES),
]
