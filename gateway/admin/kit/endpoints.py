"""What an endpoint is: a typed function. Dispatch and the OpenAPI description are made from the same facts.

`README.md` beside this file explains the kit with an example.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.kit.conditions import Match, parse_if_match
from gateway.errors import ApiError, InvalidRequest

T = TypeVar("T")

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
MULTIPART = "multipart/form-data"
JSON_LINES = "application/x-ndjson"
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,128}")


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of what callers send: unknown fields are errors."""


@dataclasses.dataclass(frozen=True)
class Answer(Generic[T]):
    """What an endpoint gives back."""

    body: T
    etag: str | None = None
    location: str | None = None
    """Path of what was made, below `Api.prefix`."""
    replayed: bool = False
    """The same request, by its `Idempotency-Key`, was answered before; nothing was done now."""


Handler = Callable[..., Awaitable[Any]]


@dataclasses.dataclass(frozen=True)
class Call:
    """One request to one endpoint. Applications add who called, and what else their functions need."""

    request: Request

    @property
    def idempotency_key(self) -> str | None:
        """The header of a POST by which a repeated request is recognised.

        Raises:
            InvalidRequest: it is malformed.
        """
        key = self.request.headers.get("idempotency-key")
        if self.request.method != "POST" or key is None:
            return None
        if not _IDEMPOTENCY_KEY.fullmatch(key):
            raise InvalidRequest(
                "Idempotency-Key: expected 1 to 128 visible ASCII characters, such as a UUID",
                param="Idempotency-Key",
                code="invalid_value",
            )
        return key

    def match(self) -> Match:
        """The state that a change is meant for.

        Raises:
            PreconditionRequired, InvalidRequest: see `parse_if_match`.
        """
        return parse_if_match(self.request.headers.get("if-match"))


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """One method of one path."""

    method: Method
    route: str
    """Starlette's path below `Api.prefix`, in which a parameter may have a converter: `{name:path}`."""
    handler: Handler
    tag: str
    access: enum.Enum
    """Whom it serves, in the application's terms: `Api.admit` decides by it and `Api.audience` says it."""
    status: int
    path_type: type[msgspec.Struct] | None
    query_type: type[msgspec.Struct] | None
    body_type: Any
    form_type: type[msgspec.Struct] | None
    """Parts of the same as a multipart form."""
    answer_type: Any
    """None: no body."""
    consumes: tuple[str, ...]
    produces: str
    versioned: bool
    """It gives an ETag; a write of such a thing needs `If-Match`."""
    located: bool
    """It answers with a `Location`."""
    raises: tuple[type[ApiError], ...]
    example: Any

    @property
    def name(self) -> str:
        """Unique; what clients made from OpenAPI call their methods."""
        return self.handler.__name__

    @property
    def path(self) -> str:
        """The path with the names of parameters in braces."""
        return re.sub(r":\w+}", "}", self.route)

    @property
    def conditional(self) -> bool:
        """Whether it needs `If-Match`."""
        return self.versioned and self.method in ("PUT", "PATCH", "DELETE")

    @property
    def documentation(self) -> tuple[str, str]:
        """Summary and description."""
        summary, _, description = inspect.cleandoc(self.handler.__doc__ or "").partition("\n")
        return summary.rstrip("."), description.strip()


class Endpoints:
    """The endpoints of one kind of thing, in the order in which they are shown."""

    def __init__(self, tag: str, description: str) -> None:
        self.tag = tag
        self.description = description
        self.all: list[Endpoint] = []

    def add(
        self,
        method: Method,
        path: str,
        *,
        access: enum.Enum,
        status: int = 200,
        versioned: bool = False,
        located: bool = False,
        raises: Sequence[type[ApiError]] = (),
        body_type: Any = None,
        form_type: type[msgspec.Struct] | None = None,
        produces: str = JSON,
        example: Any = None,
    ) -> Callable[[Handler], Handler]:
        """Decorator of the function that answers. `example` is a body that a caller may send."""

        def register(handler: Handler) -> Handler:
            hints = typing.get_type_hints(handler, include_extras=True)
            answer = hints["return"]
            body = body_type or hints.get("body")
            kinds = () if body is None else (JSON, MERGE_PATCH) if method == "PATCH" else (JSON,)
            endpoint = Endpoint(
                method=method,
                route=path,
                handler=handler,
                tag=self.tag,
                access=access,
                status=status,
                path_type=hints.get("path"),
                query_type=hints.get("query"),
                body_type=body,
                answer_type=_answer_type(answer),
                form_type=form_type,
                consumes=kinds if form_type is None else (*kinds, MULTIPART),
                produces=produces,
                versioned=versioned,
                located=located,
                raises=tuple(raises),
                example=example,
            )
            self.all.append(endpoint)
            return handler

        return register

    def get(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.add("GET", path, **options)

    def post(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.add("POST", path, **options)

    def put(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.add("PUT", path, **options)

    def patch(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.add("PATCH", path, **options)

    def delete(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.add("DELETE", path, status=204, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Api:
    """What an application tells the kit about itself."""

    prefix: str
    """Path of all endpoints, such as `/admin/v1`."""
    info: Mapping[str, Any]
    """OpenAPI's `info`: title, version, description and so on."""
    groups: Sequence[Endpoints]
    admit: Callable[[Endpoint, Request], Awaitable[Call]]
    """Finds out who calls -> the call; raises an `ApiError` for whom the endpoint does not serve."""
    audience: Callable[[Endpoint], str]
    """A sentence that says whom an endpoint serves."""
    raises: Sequence[type[ApiError]]
    """Errors that every endpoint may answer with, beside the kit's own."""
    examples: Sequence[ApiError]
    """Errors to be shown in the description, one of a type; others are shown by their docstring."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints of all groups, in the order in which they are shown."""
        return tuple(endpoint for group in self.groups for endpoint in group.all)


def _answer_type(annotation: Any) -> Any:
    """T of `Answer[T]`; `Response` is one that the function makes itself."""
    if annotation is Response:
        return str
    assert typing.get_origin(annotation) is Answer, "an endpoint returns Answer[...] or Response"
    (answer,) = typing.get_args(annotation)
    return None if answer is type(None) else answer
