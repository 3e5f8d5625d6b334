"""The configuration in force, without secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.admin.call import Access, Call
from gateway.admin.kit.endpoints import Answer, Endpoints
from gateway.config.configuration import ALL, CHANGEABLE
from gateway.config.redis import without_secrets
from gateway.config.settings import Settings
from gateway.records.section import Section

endpoints = Endpoints("settings", "The configuration in force.")


class SettingState(Struct, frozen=True):
    """One field of one section."""

    section: str
    name: str
    value: Annotated[Any, Meta(description="Passwords in addresses are left out.")]
    default: Annotated[bool, Meta(description="Whether it is what holds where nothing is configured.")]
    changeable: Annotated[bool, Meta(description="Whether it may change while a gateway runs.")]


class SettingList(Struct, frozen=True):
    data: list[SettingState]


@endpoints.get("/settings", access=Access.OPERATOR)
async def list_settings(call: Call) -> Answer[SettingList]:
    """List the settings in force on this gateway. Tenants, pools and prices have endpoints of their own."""
    return Answer(SettingList(list(_settings(call.gateway.settings))))


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
