"""What an endpoint of the admin API is: a typed function, and who may call it. OpenAPI is made from the same facts.

    endpoints = Endpoints("tenants")

    @endpoints.get("/tenants/{tenant}", access=Access.TENANT, raises=[NotFound])
    async def show(call: Call, path: TenantPath) -> Answer[TenantState]:
        '''One tenant.'''

The parameters `path`, `query` and `body` are decoded into the types that they are annotated with, msgspec Structs that
refuse unknown fields. The docstring's first line is the summary, the rest the description.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import inspect
import typing
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.access.directory.change import Idempotency, Note
from gateway.access.identity import Principal
from gateway.admin.kit.conditions import Match, parse_if_match
from gateway.errors import ApiError
from gateway.records.directory import Kind, new_id
from gateway.services import Gateway

T = TypeVar("T")

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
PREFIX = "/admin/v1"
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
MULTIPART = "multipart/form-data"
JSON_LINES = "application/x-ndjson"


class Access(enum.Enum):
    """Whom an endpoint serves, beside the scope that its method needs."""

    OPERATOR = "operators"
    """What belongs to the whole installation. Others get 403."""
    TENANT = "tenant"
    """What belongs to the tenant in the path: to its own admins and to operators. Others get 404."""
    FILTERED = "filtered"
    """Every admin; the function shows each what it may see."""


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of what callers send: unknown fields are errors."""


@dataclasses.dataclass(frozen=True)
class Answer(Generic[T]):
    """What an endpoint gives back."""

    body: T
    etag: str | None = None
    location: str | None = None
    """Path of what was made, below `/admin/v1`."""
    replayed: bool = False
    """The same request, by its `Idempotency-Key`, was answered before; nothing was done now."""


Handler = Callable[..., Awaitable[Any]]


@dataclasses.dataclass(frozen=True)
class Call:
    """One request to one endpoint, authenticated and allowed."""

    gateway: Gateway
    principal: Principal
    request: Request
    idempotency_key: str | None

    @property
    def actor(self) -> str:
        """Who does it, for the audit log."""
        principal = self.principal
        who = f"user:{principal.user}" if principal.user else f"key:{principal.key}"
        return f"{principal.tenant}/{who}"

    def new_id(self, kind: Kind) -> str:
        """An identity for what this request makes: the same when it is repeated with its `Idempotency-Key`."""
        if self.idempotency_key is None:
            return new_id(kind)
        asked = f"{kind} {self.actor} {self.idempotency_key}"
        return f"{kind}_{hashlib.sha256(asked.encode()).hexdigest()[:16]}"

    def once(self, content: Any) -> Idempotency | None:
        """Makes the change of this request happen once, if the caller gave an `Idempotency-Key`.

        Args:
            content: what makes another request with the same key another one.
        """
        if self.idempotency_key is None:
            return None
        asked = msgspec.json.encode((self.request.method, self.request.url.path, content))
        return Idempotency(self.idempotency_key, hashlib.sha256(asked).hexdigest())

    async def note(
        self,
        action: str,
        subject: str,
        tenant: str | None = None,
        *,
        changes: dict[str, Any] | None = None,
        once: Idempotency | None = None,
    ) -> bool:
        """Write into the audit log what is about to be done outside of the directory; whether it was done before.

        Raises:
            Unavailable: it cannot be written; then it must not be done.
            Conflict: the idempotency key was used for another request.
        """
        noted = Note(action, subject, tenant, changes or {})
        return (await self.gateway.directory.apply([noted], actor=self.actor, once=once)).replayed

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
    path: str
    """Below `/admin/v1`, with the names of parameters in braces."""
    handler: Handler
    tag: str
    access: Access
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
    def scope(self) -> Literal["admin:read", "admin:write"]:
        return "admin:read" if self.method == "GET" else "admin:write"

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
        access: Access,
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
                path=path,
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


def _answer_type(annotation: Any) -> Any:
    """T of `Answer[T]`; `Response` is one that the function makes itself."""
    if annotation is Response:
        return str
    assert typing.get_origin(annotation) is Answer, "an endpoint returns Answer[...] or Response"
    (answer,) = typing.get_args(annotation)
    return None if answer is type(None) else answer
