"""`GET /v1/openapi.json`: the OpenAPI 3.1 description of `/v1`, made from the types in `gateway.http.operations`."""

from __future__ import annotations

import functools
import http
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway import __version__
from gateway.http.exchange import JsonResponse
from gateway.http.operations import OPERATIONS, Operation
from gateway.protocol import answers
from gateway.protocol.anthropic.errors import OVERLOADED

_INTRODUCTION = """OpenAI's API and Anthropic's Messages API, as this server has them. docs/api.md says what parameters
mean, and which of those listed here are refused by name; docs/protocol.md describes `WS /v1/responses`."""
_REFERENCE = "#/components/schemas/{name}"
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Chosen by the caller: the same request with the same key is answered once.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string"}}}


async def read(request: Request) -> Response:
    """Serve the description. It holds no secret, so that no key is needed."""
    return JsonResponse(document(), headers={"cache-control": "no-cache"})


routes: list[BaseRoute] = [Route("/v1/openapi.json", read, methods=["GET"])]


@functools.cache
def document() -> dict[str, Any]:
    """Return the whole description."""
    used = ((each.body, each.form, each.answer, each.stream, each.error) for each in OPERATIONS)
    kinds = [kind for each in used for kind in each if kind]
    _, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    bearer = {"type": "http", "scheme": "bearer", "description": "An API key, or a token of an issuer."}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Roundhouse",
            "version": __version__,
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"x-api-key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": bearer,
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    described = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": list(_parameters(operation)),
        "responses": _responses(operation),
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(operation.body)}
    if operation.form is not None:
        form = {"multipart/form-data": {"schema": _reference(operation.form)}}
        described["requestBody"] = {"required": True, "content": form}
    return described


def _parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", operation.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    if operation.query is not None:
        _, components = msgspec.json.schema_components([operation.query])
        for name, schema in components[operation.query.__name__]["properties"].items():
            yield {"name": name, "in": "query", "required": False, "schema": schema}
    if operation.turns:
        yield _IDEMPOTENCY_KEY


def _responses(operation: Operation) -> dict[str, Any]:
    content = {"application/octet-stream": {}} if operation.answer is None else _json(operation.answer)
    if operation.stream is not None:
        content["text/event-stream"] = {"schema": _event(operation.stream)}
    phrase = http.HTTPStatus(operation.status).phrase
    responses: dict[str, Any] = {str(operation.status): {"description": phrase, "content": content}}
    for status, codes in operation.codes.items():
        phrase = "Overloaded" if status == OVERLOADED else http.HTTPStatus(status).phrase
        named = ", ".join(f"`{code}`" for code in codes)
        told = {"description": f"{phrase}: {named}", "content": _json(operation.error)}
        responses[str(status)] = told | ({"headers": _RETRY_AFTER} if status in (429, 503, OVERLOADED) else {})
    return responses


def _event(data: type[Struct]) -> dict[str, Any]:
    """Return the schema of each event of a stream, which is how tools read OpenAPI 3.1 there."""
    told: dict[str, Any] = {"type": "string", "contentMediaType": "application/json", "contentSchema": _reference(data)}
    if data in (answers.ChatCompletionChunk, answers.TextCompletion):
        told = {"anyOf": [told, {"const": "[DONE]"}]}
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": told}, "required": ["data"]}


def _json(kind: type[Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(kind)}}


def _reference(kind: type[Struct]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=kind.__name__)}
