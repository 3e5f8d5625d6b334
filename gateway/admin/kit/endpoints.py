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

from gateway.admin.kit.conditions import IfMatch, parse_if_match
from gateway.errors import ApiError, invalid_value

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
class EndpointCall:
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
            raise invalid_value("Idempotency-Key", "expected 1 to 128 visible ASCII characters, such as a UUID")
        return key

    def match(self) -> IfMatch:
        """The state that a change is meant for.

        Raises:
            PreconditionRequired, InvalidRequest: see `parse_if_match`.
        """
        return parse_if_match(self.request.headers.get("if-match"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One method of one path."""

    method: Method
    route: str
    """Starlette's path below `Api.prefix`, in which a parameter may have a converter: `{name:path}`."""
    handler: Handler
    tag: str
    access: enum.Enum
    """Whom it serves, in the application's terms: `Api.admit` decides by it and `Api.audience` says it."""
    status: int = 200
    body_type: Any = None
    """Type of the body; unless given, what the function's `body` is annotated with."""
    form_type: type[msgspec.Struct] | None = None
    """Parts of the same as a multipart form."""
    produces: str = JSON
    versioned: bool = False
    """It gives an ETag; a write of such a thing needs `If-Match`."""
    located: bool = False
    """It answers with a `Location`."""
    raises: Sequence[type[ApiError]] = ()
    example: Any = None
    """A body that a caller may send."""
    path_type: type[msgspec.Struct] | None = dataclasses.field(init=False)
    query_type: type[msgspec.Struct] | None = dataclasses.field(init=False)
    answer_type: Any = dataclasses.field(init=False)
    """T of a function that returns `Answer[T]`, str of one that makes a `Response` itself; None: no body."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(self.handler, include_extras=True)
        answer = str if hints["return"] is Response else typing.get_args(hints["return"])[0]
        derived = {
            "path_type": hints.get("path"),
            "query_type": hints.get("query"),
            "body_type": self.body_type or hints.get("body"),
            "answer_type": None if answer is type(None) else answer,
        }
        for field, value in derived.items():
            object.__setattr__(self, field, value)

    @property
    def name(self) -> str:
        """Unique; what clients made from OpenAPI call their methods."""
        return self.handler.__name__

    @property
    def path(self) -> str:
        """The path with the names of parameters in braces."""
        return re.sub(r":\w+}", "}", self.route)

    @property
    def consumes(self) -> tuple[str, ...]:
        """Media types of the body; none: there is no body."""
        if self.body_type is None:
            return ()
        return (JSON, *[MERGE_PATCH] * (self.method == "PATCH"), *[MULTIPART] * (self.form_type is not None))

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

    def add(self, method: Method, route: str, **facts: Any) -> Callable[[Handler], Handler]:
        """Decorator of the function that answers. `facts` are fields of `Endpoint`."""

        def register(handler: Handler) -> Handler:
            self.all.append(Endpoint(method=method, route=route, handler=handler, tag=self.tag, **facts))
            return handler

        return register

    def get(self, route: str, **facts: Any) -> Callable[[Handler], Handler]:
        return self.add("GET", route, **facts)

    def post(self, route: str, **facts: Any) -> Callable[[Handler], Handler]:
        return self.add("POST", route, **facts)

    def create(self, route: str, **facts: Any) -> Callable[[Handler], Handler]:
        """A POST that makes a resource: it answers with 201, `Location` and `ETag`."""
        return self.add("POST", route, status=201, located=True, versioned=True, **facts)

    def put(self, route: str, **facts: Any) -> Callable[[Handler], Handler]:
        return self.add("PUT", route, **facts)

    def patch(self, route: str, **facts: Any) -> Callable[[Handler], Handler]:
        return self.add("PATCH", route, **facts)

    def delete(self, route: str, **facts: Any) -> Callable[[Handler], Handler]:
        return self.add("DELETE", route, status=204, **facts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Api:
    """What an application tells the kit about itself."""

    prefix: str
    """Path of all endpoints, such as `/admin/v1`."""
    info: Mapping[str, Any]
    """OpenAPI's `info`: title, version, description and so on."""
    groups: Sequence[Endpoints]
    admit: Callable[[Endpoint, Request], Awaitable[EndpointCall]]
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
