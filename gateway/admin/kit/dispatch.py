"""From an HTTP request to an endpoint's function and back: what callers say is decoded, what they get is encoded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gateway.admin.kit.endpoints import JSON, MULTIPART, Answer, Api, Endpoint
from gateway.errors import InvalidRequest, MethodNotAllowed, NotFound, TooLarge, UnsupportedMediaType
from gateway.protocol.nesting import check_depth

MAX_BODY_BYTES = 1024 * 1024


def routes(api: Api, *, at: str) -> list[BaseRoute]:
    """One route for each path. What a path does not offer is 405 with all that it does.

    Args:
        at: path of the endpoints in the application that these routes become a part of.
    """
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in api.endpoints:
        by_path.setdefault(endpoint.route, {})[endpoint.method] = endpoint
    return [Route(at + route, _Methods(api, those)) for route, those in by_path.items()]


class _Methods:
    """The methods of one path, as an ASGI application."""

    def __init__(self, api: Api, endpoints: Mapping[str, Endpoint]) -> None:
        self._api, self._endpoints = api, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        endpoint = self._endpoints.get(request.method)
        if endpoint is None:
            allowed = ", ".join(self._endpoints)
            raise MethodNotAllowed(f"{request.method} is not allowed here; use {allowed}", headers={"allow": allowed})
        response = await _answer(self._api, endpoint, request)
        await response(scope, receive, send)


async def _answer(api: Api, endpoint: Endpoint, request: Request) -> Response:
    """Call the endpoint.

    Raises:
        ApiError: of those that OpenAPI lists for it.
    """
    call = await api.admit(endpoint, request)
    _ = call.idempotency_key  # refused before anything is read or done, like `If-Match` below
    arguments: dict[str, Any] = {}
    if endpoint.path_type is not None:
        arguments["path"] = _path(request.path_params, endpoint.path_type)
    query = _query(request)
    if endpoint.query_type is not None:
        arguments["query"] = _convert(query, endpoint.query_type, strict=False)
    elif query:
        name = next(iter(query))
        raise InvalidRequest(f"{name[:64]}: no such parameter here", param=name[:64], code="unknown_parameter")
    if endpoint.conditional:
        call.match()
    if endpoint.consumes:
        arguments["body"] = await _body(endpoint, request)
    result = await endpoint.handler(call, **arguments)
    return result if isinstance(result, Response) else _response(api, endpoint, result)


def _path(values: Mapping[str, Any], kind: type[msgspec.Struct]) -> msgspec.Struct:
    try:
        return msgspec.convert(dict(values), kind, strict=False)
    except msgspec.ValidationError as error:
        # A name that cannot be one leads nowhere.
        raise NotFound(f"no such thing: {error}") from None


def _query(request: Request) -> dict[str, str]:
    query = dict(request.query_params)
    if len(query) != len(request.query_params.multi_items()):
        raise InvalidRequest("a parameter is given twice; give each once")
    return query


async def _body(endpoint: Endpoint, request: Request) -> Any:
    """The decoded body; None where the function reads it itself, as it does with a multipart form.

    Raises:
        UnsupportedMediaType, InvalidRequest, TooLarge: it is not what the endpoint takes.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in endpoint.consumes:
        kinds = " or ".join(endpoint.consumes)
        raise UnsupportedMediaType(f"send the body with the header content-type: {kinds}", param="Content-Type")
    if kind == MULTIPART:
        return None
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise TooLarge(f"the body may have {MAX_BODY_BYTES} bytes")
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    check_depth(value, "the body", "invalid_json")
    return _convert(_whole(value), endpoint.body_type, strict=True)


def _whole(value: Any) -> Any:
    """The value with 3.0 as 3: both are integers to JSON Schema, and so to the description."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


_FIELD = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(.*)`")
_MISSING = re.compile(r"missing required field `(.*)`")


def _convert(value: Any, kind: Any, *, strict: bool) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        found = _FIELD.match(str(error))
        message, field = (found[1], found[2]) if found else (str(error), None)
        if unknown := _UNKNOWN.search(message):
            raise InvalidRequest(
                f"{unknown[1][:64]}: no such field", param=unknown[1][:64], code="unknown_parameter"
            ) from None
        if missing := _MISSING.search(message):
            name = f"{field}.{missing[1]}" if field else missing[1]
            raise InvalidRequest(f"{name}: is needed", param=name, code="missing_required_parameter") from None
        raise InvalidRequest(f"{field or 'body'}: {message}", param=field, code="invalid_value") from None


def _response(api: Api, endpoint: Endpoint, result: Answer[Any]) -> Response:
    headers = {"cache-control": "no-store"}
    if result.etag is not None:
        headers["etag"] = result.etag
    if result.location is not None:
        headers["location"] = api.prefix + result.location
    if result.replayed:
        headers["idempotent-replayed"] = "true"
    if endpoint.answer_type is None:
        return Response(status_code=endpoint.status, headers=headers)
    content = msgspec.json.encode(result.body)
    return Response(content, status_code=endpoint.status, headers=headers, media_type=JSON)
