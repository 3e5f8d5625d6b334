"""The OpenAPI 3.1 description of endpoints, made from their types. Pure."""

from __future__ import annotations

import http
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.admin.kit.endpoints import JSON_LINES, MULTIPART, Api, Endpoint
from gateway.errors import (
    ApiError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    TooLarge,
    UnsupportedMediaType,
)
from gateway.protocol.problems import MEDIA_TYPE, Problem, problem

_REFERENCE = "#/components/schemas/{name}"


def description(api: Api) -> dict[str, Any]:
    """The whole document."""
    schemas, components = _schemas(api.endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in api.endpoints:
        item = paths.setdefault(api.prefix + endpoint.path, {})
        item[endpoint.method.lower()] = _operation(api, endpoint, schemas, components)
    for endpoint in api.endpoints:
        for kind in (endpoint.path_type, endpoint.query_type):
            # Shown as parameters instead.
            components.pop(kind.__name__ if kind is not None else "", None)
    document = {
        "openapi": "3.1.0",
        "info": api.info,
        "servers": [{"url": "/"}],
        "tags": [{"name": group.tag, "description": group.description} for group in api.groups],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key."}},
        },
    }
    converted: dict[str, Any] = _portable(document)
    return converted


def _schemas(endpoints: Sequence[Endpoint]) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """Schemas by the type's id, and the components that they refer to."""
    types = [
        kind
        for each in endpoints
        for kind in (each.path_type, each.query_type, each.body_type, each.form_type, each.answer_type)
        if kind is not None
    ]
    kinds = {id(kind): kind for kind in (Problem, *types)}
    schemas, components = msgspec.json.schema_components(kinds.values(), ref_template=_REFERENCE)
    return dict(zip(kinds, schemas, strict=True)), dict(components)


def _operation(
    api: Api, endpoint: Endpoint, schemas: dict[int, dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    summary, text = endpoint.documentation
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [endpoint.tag],
        "summary": summary,
        "description": "\n\n".join(part for part in (text, api.audience(endpoint)) if part),
        "parameters": list(_parameters(endpoint, schemas, components)),
        "responses": _responses(api, endpoint, schemas),
    }
    if endpoint.consumes:
        content: dict[str, Any] = {}
        for kind in endpoint.consumes:
            content[kind] = {"schema": schemas[id(endpoint.form_type if kind == MULTIPART else endpoint.body_type)]}
            if endpoint.example is not None and kind != MULTIPART:
                content[kind]["example"] = endpoint.example
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameters(
    endpoint: Endpoint, schemas: dict[int, dict[str, Any]], components: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    for place, kind in (("path", endpoint.path_type), ("query", endpoint.query_type)):
        if kind is None:
            continue
        component = components[kind.__name__]
        for name, schema in component["properties"].items():
            yield {
                "name": name,
                "in": place,
                "required": name in component.get("required", ()),
                "description": schema.get("description", ""),
                "schema": {key: value for key, value in schema.items() if key != "description"},
            }
    if endpoint.method == "POST":
        yield {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "Chosen by the caller, such as a UUID: the same request with the same key is done once.",
            "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
            "example": "0193b8a0-6d0c-7cc1-a7e2-2f9d7c1d5a10",
        }
    if endpoint.conditional:
        yield {
            "name": "If-Match",
            "in": "header",
            "required": True,
            "description": "The ETag that reading it gave, or * for whatever there is.",
            "schema": {"type": "string", "maxLength": 1024},
            "example": '"17"',
        }


def _responses(api: Api, endpoint: Endpoint, schemas: dict[int, dict[str, Any]]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": http.HTTPStatus(endpoint.status).phrase}
    headers = {
        name: {"description": text, "schema": {"type": "string"}}
        for name, text, given in (
            ("ETag", "The state, for `If-Match`.", endpoint.versioned and endpoint.answer_type is not None),
            ("Location", "Where it is.", endpoint.located),
            ("Idempotent-Replayed", "`true` if it was done before, by its key.", endpoint.method == "POST"),
        )
        if given
    }
    if headers:
        success["headers"] = headers
    if endpoint.answer_type is not None:
        schema = schemas[id(endpoint.answer_type)] if endpoint.produces != JSON_LINES else {"type": "string"}
        success["content"] = {endpoint.produces: {"schema": schema}}
    responses = {str(endpoint.status): success}
    by_status: dict[int, list[type[ApiError]]] = {}
    for kind in _errors(api, endpoint):
        by_status.setdefault(kind.status, []).append(kind)
    for status, kinds in sorted(by_status.items()):
        codes = ", ".join(f"`{kind.code}`" for kind in kinds)
        responses[str(status)] = {
            "description": f"{http.HTTPStatus(status).phrase}: {codes}",
            "content": {
                MEDIA_TYPE: {"schema": schemas[id(Problem)], "example": msgspec.to_builtins(_example(api, kinds[0]))}
            },
        }
        if status in (429, 503):
            responses[str(status)]["headers"] = {
                "Retry-After": {"description": "Seconds.", "schema": {"type": "string"}},
            }
    return responses


def _errors(api: Api, endpoint: Endpoint) -> list[type[ApiError]]:
    """All errors that an endpoint may answer with."""
    found: list[type[ApiError]] = [InvalidRequest, MethodNotAllowed, *api.raises, ApiError]
    if endpoint.path_type is not None:
        found.append(NotFound)
    if endpoint.consumes:
        found += [TooLarge, UnsupportedMediaType]
    if endpoint.conditional:
        found += [PreconditionRequired, PreconditionFailed]
    found += endpoint.raises
    return list(dict.fromkeys(found))


def _example(api: Api, kind: type[ApiError]) -> Problem:
    known = {type(error): error for error in api.examples}
    text = (kind.__doc__ or "what was wrong, and what to do about it").split("\n")[0]
    return problem(known[kind] if kind in known else kind(text))


def _portable(value: Any) -> Any:
    """Patterns of JSON Schema are those of ECMA-262, which knows no \\A and \\Z."""
    if isinstance(value, dict):
        return {
            key: each.replace(r"\A", "^").replace(r"\Z", "$")
            if key == "pattern" and isinstance(each, str)
            else _portable(each)
            for key, each in value.items()
        }
    return [_portable(each) for each in value] if isinstance(value, list | tuple) else value
