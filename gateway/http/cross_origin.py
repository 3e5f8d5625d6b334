"""Lets pages of `server.allowed_origins` call the API and read its answers (CORS)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import Forbidden
from gateway.http.exchange import ErrorHandler

PATHS = ("/v1/", "/api/", "/tokenize", "/detokenize")
"""Beginnings of the paths that pages may call."""


class CrossOrigin:
    """Starlette's `CORSMiddleware` for the origins that are allowed now.

    A page may send any header and read all. Its browser's cookies and passwords are never let through: what identifies
    a page is the API key that it sends.
    """

    def __init__(self, app: ASGIApp, allowed_origins: Callable[[], Sequence[str]], on_error: ErrorHandler) -> None:
        """Args: on_error: answers a refusal in the shape of the path's API."""
        self.app = app
        self.allowed_origins = allowed_origins
        self.on_error = on_error
        self._cors = lru_cache(maxsize=1)(self._for)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = tuple(self.allowed_origins())
        if not (origins and scope["type"] == "http" and scope["path"].startswith(PATHS)):
            await self.app(scope, receive, send)
            return
        cors, headers = self._cors(origins), Headers(scope=scope)
        asks = scope["method"] == "OPTIONS" and {"origin", "access-control-request-method"} <= {*headers.keys()}
        if asks and not cors.is_allowed_origin(headers["origin"]):
            refusal = await self.on_error(
                Request(scope),
                Forbidden(
                    "pages of this origin may not call this server; list it in server.allowed_origins",
                    code="origin_not_allowed",
                    headers={"vary": "Origin"},
                ),
            )
            await refusal(scope, receive, send)
            return
        await cors(scope, receive, send)

    def _for(self, origins: tuple[str, ...]) -> CORSMiddleware:
        return CORSMiddleware(
            self.app,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("*",),
            # Listed pages may come from another network than this server; for those of all sites that is too much.
            allow_private_network="*" not in origins,
        )
