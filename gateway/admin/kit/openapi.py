"""The OpenAPI 3.1 description of endpoints, made from their types. Pure."""

from __future__ import annotations

import http
import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.admin.kit.endpoints import JSON_LINES, MULTIPART, PREFIX, Access, Endpoint, Endpoints
from gateway.errors import (
    ApiError,
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    RateLimited,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
)
from gateway.protocol.problems import MEDIA_TYPE, Problem, problem

_REFERENCE = "#/components/schemas/{name}"

_INTRODUCTION = """What an operator, or an admin of one tenant, sees and changes while the gateway runs.

Every request carries `Authorization: Bearer <key>`: a key with the scope `admin:read` for GET, else
`admin:write`.
Admins of a tenant reach what belongs to it; operators reach everything. Errors are RFC 9457 problems. What has an ETag
is changed with `If-Match`. A POST with an `Idempotency-Key` can be repeated safely for 24 hours."""


def description(groups: Sequence[Endpoints]) -> dict[str, Any]:
    """The whole document."""
    endpoints = [endpoint for group in groups for endpoint in group.all]
    schemas, components = _schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        item = paths.setdefault(PREFIX + endpoint.path, {})
        item[endpoint.method.lower()] = _operation(endpoint, schemas, components)
    for endpoint in endpoints:
        for kind in (endpoint.path_type, endpoint.query_type):
            # Shown as parameters instead.
            components.pop(kind.__name__ if kind is not None else "", None)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Roundhouse admin API",
            "version": importlib.metadata.version("roundhouse"),
            "summary": "Tenants, keys, quotas, prices, adapters, pools, caches, usage and the audit log.",
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": group.tag, "description": group.description} for group in groups],
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
    kinds: dict[int, Any] = {id(Problem): Problem}
    for endpoint in endpoints:
        for kind in (
            endpoint.path_type,
            endpoint.query_type,
            endpoint.body_type,
            endpoint.form_type,
            endpoint.answer_type,
        ):
            if kind is not None:
                kinds[id(kind)] = kind
    schemas, components = msgspec.json.schema_components(kinds.values(), ref_template=_REFERENCE)
    return dict(zip(kinds, schemas, strict=True)), dict(components)


def _operation(endpoint: Endpoint, schemas: dict[int, dict[str, Any]], components: dict[str, Any]) -> dict[str, Any]:
    summary, text = endpoint.documentation
    whom = {
        Access.OPERATOR: "Operators only.",
        Access.TENANT: "The tenant's own admins, and operators.",
        Access.FILTERED: "Every admin, each for what it may see.",
    }[endpoint.access]
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [endpoint.tag],
        "summary": summary,
        "description": "\n\n".join(part for part in (text, f"Scope `{endpoint.scope}`. {whom}") if part),
        "parameters": list(_parameters(endpoint, schemas, components)),
        "responses": _responses(endpoint, schemas),
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


def _responses(endpoint: Endpoint, schemas: dict[int, dict[str, Any]]) -> dict[str, Any]:
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
    for kind in errors_of(endpoint):
        by_status.setdefault(kind.status, []).append(kind)
    for status, kinds in sorted(by_status.items()):
        codes = ", ".join(f"`{kind.code}`" for kind in kinds)
        responses[str(status)] = {
            "description": f"{http.HTTPStatus(status).phrase}: {codes}",
            "content": {
                MEDIA_TYPE: {"schema": schemas[id(Problem)], "example": msgspec.to_builtins(_example(kinds[0]))}
            },
        }
        if status in (429, 503):
            responses[str(status)]["headers"] = {
                "Retry-After": {"description": "Seconds.", "schema": {"type": "string"}},
            }
    return responses


def errors_of(endpoint: Endpoint) -> list[type[ApiError]]:
    """All errors that an endpoint may answer with."""
    found: list[type[ApiError]] = [
        InvalidRequest,
        Unauthorized,
        Forbidden,
        MethodNotAllowed,
        RateLimited,
        ApiError,
        Unavailable,
    ]
    if endpoint.path_type is not None:
        found.append(NotFound)
    if endpoint.consumes:
        found += [TooLarge, UnsupportedMediaType]
    if endpoint.conditional:
        found += [PreconditionRequired, PreconditionFailed]
    found += endpoint.raises
    return list(dict.fromkeys(found))


_SAYINGS: dict[type[ApiError], str] = {
    Unauthorized: "no API key; send the header 'Authorization: Bearer <key>'",
    Forbidden: "this needs a key with the scope admin:write",
    NotFound: "no tenant is named 'acme'",
    PreconditionFailed: 'it has changed: its ETag is "18" now; read it again and repeat the change',
}


def _example(kind: type[ApiError]) -> Problem:
    text = _SAYINGS.get(kind, (kind.__doc__ or "what was wrong, and what to do about it").split("\n")[0])
    return problem(RateLimited(text, retry_after=2) if kind is RateLimited else kind(text))


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
