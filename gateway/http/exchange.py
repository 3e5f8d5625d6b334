"""What every HTTP endpoint needs: the body, errors in OpenAI's shape, server-sent events."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from gateway.access.identity import Principal
from gateway.errors import ApiError, InvalidRequest, MethodNotAllowed, NotFound, TooLarge, UnsupportedMediaType
from gateway.protocol.log import TurnLog
from gateway.protocol.nesting import decode_json
from gateway.protocol.requests import only_known
from gateway.protocol.stream import Routed
from gateway.services import Gateway, gateway_of
from gateway.telemetry.trace import TurnTrace

ErrorHandler = Callable[[Request, Exception], Awaitable[Response]]
_ETAG = re.compile(r'"(\d{1,16})"')
CLIENT_CLOSED_REQUEST = 499
"""nginx's status for an answer that nobody is left to read; it only shows in logs."""


class JsonResponse(Response):
    """A JSON body made by msgspec."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body, which may be compressed with gzip.

    Raises:
        InvalidRequest: it is not valid JSON, or no object.
        TooLarge: it is larger than `server.max_message_bytes`, see also `gateway.http.middleware.BodyLimit`.
        UnsupportedMediaType: it is compressed in another way.
    """
    content = await request.body()
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding in ("gzip", "x-gzip"):
        content = _unzipped(content, gateway_of(request).settings.server.max_message_bytes)
    elif coding != "identity":
        raise UnsupportedMediaType(
            f"content-encoding: {coding[:80]!r} is not supported; send the body as it is, or compressed with gzip",
            param="content-encoding",
        )
    body = decode_json(content, "the body", "invalid_json")
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return body


async def read_parameters(request: Request, principal: Principal, type_: type[Struct]) -> dict[str, Any]:
    """Read a body for this struct, see `read_object`, without unknown parameters if the tenant ignores them."""
    return parameters(gateway_of(request), principal, await read_object(request), type_)


def parameters(gateway: Gateway, principal: Principal, body: dict[str, Any], type_: type[Struct]) -> dict[str, Any]:
    """Return a body for this struct, without unknown parameters if the tenant ignores them."""
    return only_known(body, type_) if gateway.identity.ignores_unknown(principal) else body


def revision_read(request: Request) -> int | None:
    """Return the revision in `If-Match` that a change is meant for; None: the header is missing or no ETag of ours."""
    etag = _ETAG.fullmatch(request.headers.get("if-match", ""))
    return None if etag is None else int(etag[1])


def _unzipped(content: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        plain = stream.decompress(content, limit + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not valid gzip: {error}", code="invalid_json") from None
    if len(plain) > limit:
        raise TooLarge(f"the body may have {limit} bytes; shorten the input")
    if not stream.eof or stream.unused_data:
        raise InvalidRequest("the body is not one whole gzip stream", code="invalid_json")
    return plain


def error_response(error: ApiError) -> JsonResponse:
    """Return an error as an HTTP response."""
    return JsonResponse({"error": error.body()}, status_code=error.status, headers=error.headers)


def api_error(request: Request, error: Exception) -> ApiError:
    """Turn any exception into an `ApiError`. Starlette logs the traceback of one that is a fault of ours."""
    match error:
        case ApiError():
            return error
        case HTTPException(status_code=404, headers=headers):
            return NotFound(f"no such path: {request.url.path[:200]}", headers=dict(headers or {}))
        case HTTPException(status_code=405):
            return MethodNotAllowed(f"{request.method} is not allowed here", headers={"allow": _allowed(request)})
        case HTTPException(detail=detail, headers=headers):
            return InvalidRequest(detail, headers=dict(headers or {}))
        case _:
            return ApiError("the server failed while it worked on this request")


def _allowed(request: Request) -> str:
    """Return the methods of a path. Starlette names those of its first route only."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    path = next(route.path for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in routes if route.path == path for method in route.methods or ()}))


async def on_error(request: Request, error: Exception) -> Response:
    """Exception handler for every error: answers in OpenAI's shape."""
    return error_response(api_error(request, error))


def overhead_header(traces: Iterable[TurnTrace]) -> dict[str, str]:
    """Return a header with the milliseconds that the gateway took beside waiting for engines; of the slowest turn."""
    return {"x-roundhouse-overhead-ms": f"{1000 * max(trace.overhead for trace in traces):.3f}"}


def route_headers(routes: Iterable[Routed]) -> dict[str, str]:
    """Return headers with cache, tier and model; several values where turns differ."""
    routes = list(routes)

    def values(name: str) -> str:
        return ", ".join(dict.fromkeys(quote(getattr(routed, name), safe="/:+@ ") for routed in routes))

    return {
        f"x-roundhouse-{name.replace('_', '-')}": values(name) for name in ("cache", "cache_reason", "tier", "model")
    }


def cost_headers(logs: Iterable[TurnLog]) -> dict[str, str]:
    """Return a header with the cost of ended turns together; none if none of them has a price."""
    costs = [log.finished.cost for log in logs if log.finished and log.finished.cost is not None]
    return {"x-roundhouse-cost-microdollars": str(sum(costs))} if costs else {}


class ServerSentEvents(Response):
    """A stream of server-sent events.

    Ends when `chunks` does, when the client goes away, or when it leaves what was sent unread for `send_timeout`
    seconds. `close` is called in every case, also if `chunks` was never begun.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        *,
        close: Callable[[], None],
        send_timeout: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.chunks = chunks
        self.close = close
        self.send_timeout = send_timeout
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = asyncio.ensure_future(self._stream(send))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait((stream, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.close()
            for task in (stream, gone):
                task.cancel()
            outcome, _ = await asyncio.gather(stream, gone, return_exceptions=True)
        if isinstance(outcome, Exception) and not isinstance(outcome, OSError):  # a TimeoutError is an OSError
            raise outcome

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self.chunks:
            async with asyncio.timeout(self.send_timeout):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class JsonLines(ServerSentEvents):
    """The same with JSON objects, one a line."""

    media_type = "application/x-ndjson"


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Response]) -> Response:
    """Return the response that `work` makes; cancel it if the client goes away before."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


def sse_event(data: Any, event: str | None = None) -> bytes:
    """Encode a server-sent event with a JSON payload."""
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + msgspec.json.encode(data) + b"\n\n"
