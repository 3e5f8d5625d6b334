"""The chat page at `/`, its files under `/static/`, and what it asks of this server at `/ui/config.json`.

Mount by adding `routes` to the application's routes. Everything the page needs comes from here: its policy allows no
other host, no inline script or style, and no string to become HTML.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

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
        "trusted-types 'none'",
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


async def config(request: Request) -> Response:
    """`GET /ui/config.json`: the key of the embedded default, where the router's tiers begin, and tiers still to come.

    A key is told only while the tenants are those of the embedded default, whose key is public knowledge; otherwise
    `key` is null and the page asks its user for one, unless `signed_in` says that the browser's session may chat.
    """
    gateway = gateway_of(request)
    settings, arrivals, person = gateway.settings, gateway.arrivals, await gateway.signed_in(request)
    embedded = settings.tenants == demo_settings().tenants
    body = {
        "key": DEMO_KEY if embedded else None,
        "signed_in": person is not None and "chat" in person.scopes,
        "tiers": {"medium_from": settings.router.medium_from, "large_from": settings.router.large_from},
        # In the order in which they come. Why a model cannot be fetched is for the terminal: it may name hosts.
        "coming": [msgspec.to_builtins(each) for each in arrivals.coming.values()],
        "none_fetched": arrivals.none_fetched,
    }
    return JsonResponse(body, headers={"cache-control": "no-store"})


routes: list[BaseRoute] = [
    Route("/", index),
    Route("/ui/config.json", config),
    Mount("/static", FILES),
]
