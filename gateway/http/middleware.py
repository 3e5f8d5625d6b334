"""Pure ASGI middleware: headers and checks of every request, whatever answers it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from time import monotonic
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway.config.origin import host_allowed
from gateway.errors import Forbidden, TooLarge
from gateway.http.exchange import ErrorHandler, error_response
from gateway.telemetry.logs import bind
from gateway.telemetry.trace import NO_ORIGIN, TRACEPARENT, Origin, arrived, origin, remote_parent

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class RequestHeaders:
    """Gives every response an `x-request-id`, the client's own if it is well formed, and binds it to all log lines.

    HTTP responses also say how long they took to begin, under OpenAI's name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        came, headers = monotonic(), Headers(scope=scope)
        offered = headers.get("x-request-id", "")
        request_id = offered if _REQUEST_ID.fullmatch(offered) else "req_" + secrets.token_hex(16)

        async def send_with_headers(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                sent = MutableHeaders(scope=message)
                sent["x-request-id"] = request_id
                sent["x-content-type-options"] = "nosniff"
                if message["type"] == "http.response.start":
                    sent["openai-processing-ms"] = str(round(1000 * (monotonic() - came)))
            await send(message)

        scope.setdefault("state", {})["request_id"] = request_id
        if scope["type"] == "http":
            arrived.set(came)
            # Where requests are traced, their own spans replace this origin.
            parent = remote_parent(headers.get(TRACEPARENT))
            origin.set(Origin(parent) if parent else NO_ORIGIN)
        with bind(request_id=request_id):
            await self.app(scope, receive, send_with_headers)


class HostCheck:
    """Refuses requests for another host's name, see `gateway.config.origin.host_allowed`; allowed origins pass."""

    def __init__(
        self, app: ASGIApp, listen: str, allowed_origins: Callable[[], Sequence[str]], on_error: ErrorHandler
    ) -> None:
        """Args: on_error: answers a refusal in the shape of the path's API."""
        self.app = app
        self.listen = listen
        self.allowed_origins = allowed_origins
        self.on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            host = Headers(scope=scope).get("host")
            if not host_allowed(host, self.listen) and host not in {urlsplit(o).netloc for o in self.allowed_origins()}:
                error = Forbidden(
                    f"this server is not known as {host!r:.80}; use its own address, or list the page's in "
                    "server.allowed_origins",
                    code="host_not_allowed",
                )
                if scope["type"] == "http":
                    await (await self.on_error(Request(scope), error))(scope, receive, send)
                else:
                    await WebSocket(scope, receive, send).send_denial_response(error_response(error))
                return
        await self.app(scope, receive, send)


class BodyLimit:
    """Refuses a request whose body is above `limit` bytes, while it is read; paths that begin like one of `elsewhere`
    have limits of their own."""

    def __init__(self, app: ASGIApp, limit: int, elsewhere: tuple[str, ...] = ()) -> None:
        self.app = app
        self.limit = limit
        self.elsewhere = elsewhere

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(self.elsewhere):
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
