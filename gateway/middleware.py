"""Pure ASGI middleware: what holds for every request, whatever answers it."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import TooLarge
from gateway.telemetry.logs import bind

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class RequestHeaders:
    """Gives every response an `x-request-id`, the client's own if it is well formed, and binds it to all log lines."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        offered = Headers(scope=scope).get("x-request-id", "")
        request_id = offered if _REQUEST_ID.fullmatch(offered) else "req_" + secrets.token_hex(16)

        async def send_with_headers(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["x-content-type-options"] = "nosniff"
            await send(message)

        with bind(request_id=request_id):
            await self.app(scope, receive, send_with_headers)


class BodyLimit:
    """Refuses a request whose body is above `limit` bytes, while it is read."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        read = 0

        async def limited_receive() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.limit:
                raise TooLarge(f"the body may have {self.limit} bytes; shorten the input")
            return message

        await self.app(scope, limited_receive, send)
