"""Who calls an endpoint of the admin API, whether they may, and what its function can do for them."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from typing import Any

import msgspec
from starlette.requests import Request

from gateway.access.directory.change import Idempotency, Note
from gateway.access.identity import Principal, Scope
from gateway.admin.kit import endpoints as kit
from gateway.errors import Forbidden, NotFound
from gateway.records.directory import Kind, Tenant, new_id
from gateway.services import Gateway, gateway_of


class Access(enum.Enum):
    """Whom an endpoint serves, beside the scope that its method needs."""

    OPERATOR = "operators"
    """What belongs to the whole installation. Others get 403."""
    TENANT = "tenant"
    """What belongs to the tenant in the path: to its own admins and to operators. Others get 404."""
    FILTERED = "filtered"
    """Every admin; the function shows each what it may see."""


@dataclasses.dataclass(frozen=True)
class Call(kit.EndpointCall):
    """One request to one endpoint, authenticated and allowed."""

    gateway: Gateway
    principal: Principal

    @property
    def actor(self) -> str:
        """The caller, as the audit log names it."""
        return self.principal.actor

    def new_id(self, kind: Kind) -> str:
        """An identity for what this request makes: the same when it is repeated with its `Idempotency-Key`."""
        if self.idempotency_key is None:
            return new_id(kind)
        asked = f"{kind} {self.actor} {self.idempotency_key}"
        return f"{kind}_{hashlib.sha256(asked.encode()).hexdigest()[:16]}"

    def once(self, content: Any) -> Idempotency | None:
        """The identity by which the directory makes a change once; None without an `Idempotency-Key`.

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
        """Write into the audit log what is about to be done outside of the directory -> whether it was done before.

        Raises:
            Unavailable: it cannot be written; then it must not be done.
            Conflict: the idempotency key was used for another request.
        """
        noted = Note(action, subject, tenant, changes or {})
        return (await self.gateway.directory.apply([noted], actor=self.actor, once=once)).replayed


async def admit(endpoint: kit.Endpoint, request: Request) -> Call:
    """Let in whom the endpoint serves.

    Raises:
        Unauthorized, Forbidden, NotFound: it does not serve the caller, or there is no such tenant.
    """
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, _scope(endpoint))
    if endpoint.access is Access.OPERATOR and not principal.operator:
        raise Forbidden("this belongs to the whole installation; only operators may see or change it")
    if endpoint.access is Access.TENANT:
        name = request.path_params["tenant"]
        # Others are not even told whether it exists.
        if not (principal.operator or name == principal.tenant) or await gateway.directory.get(Tenant, name) is None:
            raise NotFound(f"no tenant is named {name[:64]!r}")
    return Call(request, gateway, principal)


def serves(endpoint: kit.Endpoint, principal: Principal) -> bool:
    """Whether an endpoint serves a caller at all: of what belongs to tenants, for some tenant."""
    return _scope(endpoint) in principal.scopes and (principal.operator or endpoint.access is not Access.OPERATOR)


def audience(endpoint: kit.Endpoint) -> str:
    """A sentence on whom an endpoint serves, for its description."""
    whom = {
        Access.OPERATOR: "Operators only.",
        Access.TENANT: "The tenant's own admins, and operators.",
        Access.FILTERED: "Every admin, each for what it may see.",
    }[Access(endpoint.access)]
    return f"Scope `{_scope(endpoint)}`. {whom}"


def _scope(endpoint: kit.Endpoint) -> Scope:
    return "admin:read" if endpoint.method == "GET" else "admin:write"
