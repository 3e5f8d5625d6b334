"""API keys."""

from __future__ import annotations

import hashlib

import pytest

from gateway.errors import Unauthorized
from gateway.identity import Principal
from gateway.identity.authenticate import Identity
from gateway.settings import ApiKey, Settings, Tenant, demo_settings


@pytest.mark.anyio
async def test_a_known_key_is_its_tenant() -> None:
    digest = hashlib.sha256(b"sesame").hexdigest()
    identity = Identity(Settings(tenants=[Tenant(name="acme", keys=[ApiKey(id="ci", sha256=digest)])]))
    assert await identity.authenticate("Bearer sesame") == Principal("acme", "ci")
    assert await identity.authenticate("bearer  sesame") == Principal("acme", "ci")


@pytest.mark.anyio
async def test_the_embedded_default_accepts_the_demo_key() -> None:
    assert (await Identity(demo_settings()).authenticate("Bearer roundhouse-demo")).tenant == "demo"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic cm91bmQ=",
        "Bearer wrong",
        "Bearer a b",
        "Bearer " + "x" * 600,
        "Bearer \xff",
    ],
)
@pytest.mark.anyio
async def test_anything_else_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthorized):
        await Identity(demo_settings()).authenticate(header)


@pytest.mark.anyio
async def test_the_error_does_not_repeat_the_key() -> None:
    with pytest.raises(Unauthorized) as caught:
        await Identity(demo_settings()).authenticate("Bearer top-secret-key")
    assert "top-secret-key" not in caught.value.message
