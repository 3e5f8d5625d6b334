"""Limits that a tenant's own admins set for its users and adapters, beside those that operators set."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.admin.call import Access, Call
from gateway.admin.endpoints import records, shapes
from gateway.admin.endpoints.shapes import TenantPath
from gateway.admin.kit.conditions import entity_tag
from gateway.admin.kit.endpoints import Answer, Endpoints
from gateway.errors import Conflict
from gateway.records.directory import Quotas, Tenant

endpoints = Endpoints("quotas", "Limits that a tenant's own admins set.")


class OwnQuotas(Struct, frozen=True, kw_only=True):
    """What single users and adapters of a tenant may use. All of it is replaced at once."""

    users: Annotated[Quotas, Meta(description="Of users, by their ids.")] = msgspec.field(default_factory=dict)
    adapters: Annotated[
        Quotas, Meta(description="Of adapters. Where operators have set a limit, too, the stricter one counts.")
    ] = msgspec.field(default_factory=dict)


NewOwnQuotas = shapes.creation("NewOwnQuotas", OwnQuotas)


@endpoints.get("/tenants/{tenant}/quotas/own", access=Access.TENANT, versioned=True)
async def show_own_quotas(call: Call, path: TenantPath) -> Answer[OwnQuotas]:
    """Show what a tenant's own admins let users and adapters use. The ETag is the tenant's."""
    return _answer(await records.find(call, Tenant, path.tenant))


@endpoints.put(
    "/tenants/{tenant}/quotas/own",
    access=Access.TENANT,
    versioned=True,
    raises=[Conflict],
    body_type=NewOwnQuotas,
    example={"users": {"user_3f9c2a7b10d4e586": {"requests_per_minute": 10}}},
)
async def set_own_quotas(call: Call, path: TenantPath, body: Any) -> Answer[OwnQuotas]:
    """Set what users and adapters of a tenant may use; what is left out is not limited."""
    tenant = await records.find(call, Tenant, path.tenant)
    call.match().check(entity_tag(tenant.revision))
    changed = msgspec.structs.replace(tenant, user_quotas=body.users, own_adapter_quotas=body.adapters)
    return _answer(await call.gateway.directory.write(changed, actor=call.actor, expected=tenant.revision))


def _answer(tenant: Tenant) -> Answer[OwnQuotas]:
    quotas = OwnQuotas(users=tenant.user_quotas, adapters=tenant.own_adapter_quotas)
    return Answer(quotas, etag=entity_tag(tenant.revision))
