"""The configuration in force, through the admin API."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.config.configuration import fixed
from gateway.config.safety import SafetySettings
from gateway.config.settings import Settings
from tests.gateway.admin.conftest import Administer, problem

pytestmark = pytest.mark.anyio


async def test_every_section_is_listed_as_it_is_in_force(administer: Administer) -> None:
    """Lists of tables have endpoints of their own; what belongs to the installation is for operators."""
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
        problem(await api.acme.get("/settings"), 403, "forbidden")


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
