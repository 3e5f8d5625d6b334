"""Lets pages of `server.allowed_origins` call `/v1` and read its answers (CORS)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send


class CrossOrigin:
    """Starlette's `CORSMiddleware` for the origins that are allowed now.

    A page may send any header and read all. Its browser's cookies and passwords are never let through: what identifies
    a page is the API key that it sends.
    """

    def __init__(self, app: ASGIApp, allowed_origins: Callable[[], Sequence[str]]) -> None:
        self.app = app
        self.allowed_origins = allowed_origins
        self._cors = lru_cache(maxsize=1)(self._for)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = tuple(self.allowed_origins())
        allowed = origins and scope["type"] == "http" and scope["path"].startswith("/v1/")
        await (self._cors(origins) if allowed else self.app)(scope, receive, send)

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
