"""The configuration in force, without secrets. A tenant's admins see what concerns their tenant, as it is for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.admin.call import Access, Call
from gateway.admin.endpoints import records
from gateway.admin.endpoints.shapes import PathName
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.config.configuration import ALL, CHANGEABLE
from gateway.config.redis import without_secrets
from gateway.config.settings import LimitSettings, Settings
from gateway.errors import NotFound
from gateway.records.directory import Tenant
from gateway.records.section import Section

endpoints = Endpoints("settings", "The configuration in force.")


OF_TENANTS: Mapping[str, tuple[str, ...]] = {
    "turns": (
        "orphan_timeout",
        "retention",
        "store_ttl",
        "max_stored_per_tenant",
        "max_stored_bytes_per_tenant",
        "max_concurrent_per_connection",
        "queue_timeout",
        "default_max_output_tokens",
    ),
    "limits": LimitSettings.__struct_fields__,
    "cache": ("enabled", "ttl", "max_entry_bytes", "max_entries_per_tenant", "max_bytes_per_tenant", "scope"),
    "semantic_cache": ("enabled", "max_wrong_hits"),
    "usage": ("entry_days", "hour_days", "day_days"),
    "batches": ("ttl", "max_files_per_tenant", "max_bytes_per_tenant", "max_unfinished_per_tenant"),
    "chat": ("history", "keep", "max_bytes_per_user", "sharing", "comments"),
    "safety": ("input", "output", "replacement", "hold_seconds", "anomalies", "presidio"),
}
"""Fields that a tenant's admins see. What names other tenants, files or addresses is not among them."""


class SettingsQuery(Input, frozen=True):
    tenant: Annotated[
        PathName | None, Meta(description="What concerns this tenant; null: everything, for admins their own.")
    ] = None


class SettingState(Struct, frozen=True):
    """One field of one section."""

    section: str
    name: str
    value: Annotated[Any, Meta(description="Passwords in addresses are left out.")]
    default: Annotated[bool, Meta(description="Whether it is what holds where nothing is configured.")]
    changeable: Annotated[bool, Meta(description="Whether it may change while a gateway runs.")]


class SettingList(Struct, frozen=True):
    data: list[SettingState]


@endpoints.get("/settings", access=Access.FILTERED, raises=[NotFound])
async def list_settings(call: Call, query: SettingsQuery) -> Answer[SettingList]:
    """List the settings in force on this gateway; for a tenant those that concern it.

    Tenants, pools and prices have endpoints of their own.
    """
    settings, tenant = call.gateway.settings, await records.tenant_of(call, query.tenant)
    if tenant is None:
        return Answer(SettingList(list(_settings(settings))))
    found = _settings(_as_for(settings, await records.find(call, Tenant, tenant)))
    return Answer(SettingList([each for each in found if each.name in OF_TENANTS.get(each.section, ())]))


def _as_for(settings: Settings, tenant: Tenant) -> Settings:
    """Return the settings with what holds for a tenant in the place of what holds for all."""
    cache, semantic, chat, safety = settings.cache, settings.semantic_cache, settings.chat, settings.safety
    name, policy = tenant.name, safety.tenants.get(tenant.name, safety)
    replace = msgspec.structs.replace
    return replace(
        settings,
        limits=settings.limits if tenant.quota is None else tenant.quota.over(settings.limits),
        cache=replace(cache, scope=cache.tenant_scopes.get(name, cache.scope)),
        semantic_cache=replace(semantic, max_wrong_hits=semantic.promise_of(name)),
        chat=replace(
            chat,
            history=chat.history_of(name, has_user=True),
            sharing=chat.sharing_of(name),
            comments=chat.comments_of(name),
        ),
        safety=replace(safety, input=policy.input, output=policy.output),
    )


def _settings(settings: Settings) -> Iterator[SettingState]:
    for name in settings.__struct_fields__:
        section = getattr(settings, name)
        if not isinstance(section, Section):
            continue
        changeable, defaults = CHANGEABLE.get(name, frozenset()), type(section)()
        for field in section.__struct_fields__:
            value = getattr(section, field)
            yield SettingState(
                section=name,
                name=field,
                value=_shown(msgspec.to_builtins(value)),
                default=value == getattr(defaults, field),
                changeable=changeable is ALL or field in changeable,
            )


def _shown(value: Any) -> Any:
    """Return a value without the passwords of addresses in it."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    return value
