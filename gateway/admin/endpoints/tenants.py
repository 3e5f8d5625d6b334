"""Tenants and their quotas."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.admin.call import Access, Call
from gateway.admin.endpoints import records, shapes
from gateway.admin.endpoints.shapes import Page, TenantPath
from gateway.admin.kit.conditions import entity_tag
from gateway.admin.kit.endpoints import Answer, Endpoints
from gateway.errors import Conflict
from gateway.limits.standing import LimitStanding, standings
from gateway.limits.subjects import every_subject
from gateway.records.directory import Key, Quotas, Tenant
from gateway.records.quota import Quota
from gateway.turns.forgetting import forget_texts

endpoints = Endpoints("tenants", "Customers and teams, and what they may use.")

NewTenant = shapes.creation("NewTenant", Tenant, instead={"name": shapes.Name})
TenantChange = shapes.change("TenantChange", Tenant, without=["name"])
TenantState = shapes.state("TenantState", Tenant)

_QUOTA = {"requests_per_minute": 60, "output_tokens_per_minute": 20_000, "spend_per_day": 5_000_000}


class TenantList(Struct, frozen=True):
    data: list[TenantState]  # type: ignore[valid-type]
    next: str | None


class TenantQuotas(Struct, frozen=True, kw_only=True):
    """What a tenant may use. All of it is replaced at once."""

    quota: Annotated[Quota | None, Meta(description="In all; a field left out: as in `[limits]`.")] = None
    models: Annotated[Quotas, Meta(description="Of single models.")] = msgspec.field(default_factory=dict)
    adapters: Annotated[Quotas, Meta(description="Of single adapters.")] = msgspec.field(default_factory=dict)


NewTenantQuotas = shapes.creation("NewTenantQuotas", TenantQuotas)


class LimitList(Struct, frozen=True):
    data: list[LimitStanding]


@endpoints.get("/tenants", access=Access.FILTERED)
async def list_tenants(call: Call, query: Page) -> Answer[TenantList]:
    """List tenants, those of the configuration file included; an admin of one sees that one."""
    if not call.principal.operator:
        own = await records.find(call, Tenant, call.principal.tenant)
        return Answer(TenantList([shapes.shown(own, TenantState)], None))
    return Answer(TenantList(*await records.page_of(call, Tenant, query, TenantState)))


@endpoints.create(
    "/tenants",
    access=Access.OPERATOR,
    raises=[Conflict],
    body_type=NewTenant,
    example={"name": "acme", "description": "Acme Corporation", "quota": _QUOTA},
)
async def create_tenant(call: Call, body: Any) -> Answer[TenantState]:  # type: ignore[valid-type]
    """Make a tenant."""
    tenant = Tenant(**msgspec.structs.asdict(body))
    return await records.create(call, tenant, TenantState, f"/tenants/{tenant.name}")


@endpoints.get("/tenants/{tenant}", access=Access.TENANT, versioned=True)
async def show_tenant(call: Call, path: TenantPath) -> Answer[TenantState]:  # type: ignore[valid-type]
    """Show a tenant."""
    return records.answer(await records.find(call, Tenant, path.tenant), TenantState)


@endpoints.patch(
    "/tenants/{tenant}",
    access=Access.OPERATOR,
    versioned=True,
    raises=[Conflict],
    body_type=TenantChange,
    example={"weight": 2.0, "models": ["llama-8b", "pirate"]},
)
async def change_tenant(call: Call, path: TenantPath, body: Any) -> Answer[TenantState]:  # type: ignore[valid-type]
    """Change a tenant; fields that are left out stay."""
    tenant = await records.find(call, Tenant, path.tenant)
    return await records.change(call, tenant, shapes.given(body), TenantState)


@endpoints.delete("/tenants/{tenant}", access=Access.OPERATOR, versioned=True, raises=[Conflict])
async def delete_tenant(call: Call, path: TenantPath) -> Answer[None]:
    """Delete a tenant that has no users, keys and routes any more, with its shared prompts and its users' comments.

    Where that fails half-way (503), repeat it: prompts and comments that are left of a deleted tenant are deleted then.
    """
    gateway, name = call.gateway, path.tenant
    if not await gateway.directory.exists(Tenant, name) and await forget_texts(gateway.redis, name):
        return Answer(None)
    deleted = await records.delete(call, await records.find(call, Tenant, name))
    # Afterwards: a tenant that is still in use stays, and until it is deleted it writes texts.
    await forget_texts(gateway.redis, name)
    return deleted


@endpoints.get("/tenants/{tenant}/quotas", access=Access.TENANT, versioned=True)
async def show_quotas(call: Call, path: TenantPath) -> Answer[TenantQuotas]:
    """Show what a tenant may use. The ETag is the tenant's."""
    return _quotas(await records.find(call, Tenant, path.tenant))


@endpoints.put(
    "/tenants/{tenant}/quotas",
    access=Access.OPERATOR,
    versioned=True,
    raises=[Conflict],
    body_type=NewTenantQuotas,
    example={"quota": _QUOTA, "models": {"llama-70b": {"requests_per_minute": 10}}},
)
async def set_quotas(call: Call, path: TenantPath, body: Any) -> Answer[TenantQuotas]:
    """Set what a tenant may use; what is left out is not limited."""
    tenant = await records.find(call, Tenant, path.tenant)
    call.match().check(entity_tag(tenant.revision))
    changed = msgspec.structs.replace(tenant, quota=body.quota, model_quotas=body.models, adapter_quotas=body.adapters)
    return _quotas(await call.gateway.directory.write(changed, actor=call.actor, expected=tenant.revision))


@endpoints.get("/tenants/{tenant}/limits", access=Access.TENANT)
async def show_limits(call: Call, path: TenantPath) -> Answer[LimitList]:
    """Show how much of its limits a tenant has used, with those of its keys, models and adapters."""
    tenant, settings = await records.find(call, Tenant, path.tenant), call.gateway.settings.limits
    keys = [key async for key in call.gateway.directory.every(Key, tenant=tenant.name)]
    subjects = {tenant.name: every_subject(settings, tenant, keys)}
    found = await standings(call.gateway.redis, subjects, settings.soft_limit)
    return Answer(LimitList(found.get(tenant.name, [])))


def _quotas(tenant: Tenant) -> Answer[TenantQuotas]:
    quotas = TenantQuotas(quota=tenant.quota, models=tenant.model_quotas, adapters=tenant.adapter_quotas)
    return Answer(quotas, etag=entity_tag(tenant.revision))
