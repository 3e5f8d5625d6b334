"""The configuration in force, through the admin API."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.admin.endpoints.settings import OF_TENANTS
from gateway.config.chat import ChatSettings
from gateway.config.configuration import fixed
from gateway.config.response_cache import CacheSettings
from gateway.config.safety import SafetyPolicy, SafetySettings
from gateway.config.settings import SemanticCacheSettings, Settings
from tests.gateway.admin.conftest import Administer, problem

pytestmark = pytest.mark.anyio


async def test_every_section_is_listed_as_it_is_in_force(administer: Administer) -> None:
    """Lists of tables have endpoints of their own."""
    safety = SafetySettings(input={"email": "redact"})
    async with administer(safety=safety) as api:
        listed = (await api.operator.get("/settings")).json()["data"]
        settings = api.served.gateway.settings
        shown: dict[str, dict[str, Any]] = {}
        for each in listed:
            shown.setdefault(each["section"], {})[each["name"]] = each["value"]
        assert shown["safety"] == msgspec.to_builtins(safety)
        assert shown["turns"] == msgspec.to_builtins(settings.turns)
        assert {*Settings.__struct_fields__} - shown.keys() == {"tenants", "pools", "prices"}
        defaults = {(each["section"], each["name"]): each["default"] for each in listed}
        assert (defaults["safety", "input"], defaults["safety", "output"]) == (False, True)


async def test_it_says_what_may_change_while_a_gateway_runs(administer: Administer) -> None:
    """As a changed file is judged."""
    async with administer() as api:
        listed = (await api.operator.get("/settings")).json()["data"]
    changeable = {(each["section"], each["name"]): each["changeable"] for each in listed}
    old = Settings()
    for section, name, value in (("turns", "retention", 7.0), ("server", "port", 1), ("cache", "enabled", False)):
        new = msgspec.structs.replace(old, **{section: msgspec.structs.replace(getattr(old, section), **{name: value})})
        assert changeable[section, name] == (fixed(old, new) == [])


async def test_no_password_is_told(administer: Administer, redis_url: str) -> None:
    # Redis takes any password of a user that needs none.
    secret = redis_url.replace("redis://", "redis://default:hunter2@")
    async with administer(redis_options={"url": secret}) as api:
        answer = await api.operator.get("/settings")
    assert "hunter2" not in answer.text
    [url] = [each["value"] for each in answer.json()["data"] if (each["section"], each["name"]) == ("redis", "url")]
    assert url == redis_url


async def test_a_tenants_admins_see_what_concerns_it(administer: Administer) -> None:
    """As it is for the tenant, and nothing of others, nor files and addresses; operators see the same if they ask."""
    changes: dict[str, Any] = {
        "safety": SafetySettings(input={"email": "redact"}, tenants={"acme": SafetyPolicy(input={"iban": "block"})}),
        "chat": ChatSettings(tenants={"acme": "off", "other": "server"}, tenant_comments={"other": True}),
        "cache": CacheSettings(tenant_scopes={"other": "tenant"}),
        "semantic_cache": SemanticCacheSettings(enabled=True, tenants={"acme": 0.01}),
    }
    async with administer(**changes) as api:
        quota = {"name": "baker", "quota": {"requests_per_minute": 7}}
        assert (await api.operator.post("/tenants", json=quota)).status_code == 201
        baker = (await api.operator.get("/settings?tenant=baker")).json()["data"]
        limits = {each["name"]: each["value"] for each in baker if each["section"] == "limits"}
        assert (limits["requests_per_minute"], limits["output_tokens_per_minute"]) == (7, 600_000)
        answer = await api.acme.get("/settings")
        assert (await api.operator.get("/settings?tenant=acme")).json() == answer.json()
        problem(await api.other.get("/settings?tenant=acme"), 404, "not_found")
        theirs = (await api.other.get("/settings")).json()["data"]
    shown = {(each["section"], each["name"]): each["value"] for each in answer.json()["data"]}
    other = {(each["section"], each["name"]): each["value"] for each in theirs}
    assert shown["safety", "input"] == {"iban": "block"} and other["safety", "input"] == {"email": "redact"}
    assert (shown["chat", "history"], shown["chat", "sharing"], shown["chat", "comments"]) == ("off", "off", False)
    assert (other["chat", "history"], other["chat", "comments"]) == ("server", True)
    assert other["cache", "scope"] == "tenant" != shown["cache", "scope"]
    assert shown["semantic_cache", "max_wrong_hits"] == 0.01 != other["semantic_cache", "max_wrong_hits"]
    assert shown["limits", "output_tokens_per_minute"] == 600_000
    hidden = {"redis", "server", "identity", "pools", "log", "admin", "router", "alerts"}
    assert not hidden & {section for section, _ in shown}
    assert not {name for _, name in shown} & {"tenants", "tenant_comments", "tenant_scopes", "blocked", "patterns"}
    assert "other" not in answer.text


def test_what_tenants_see_exists() -> None:
    for section, names in OF_TENANTS.items():
        assert {*names} <= {*getattr(Settings(), section).__struct_fields__}, section
