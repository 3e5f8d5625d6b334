"""API keys."""

from __future__ import annotations

import hashlib

import pytest

from gateway.errors import Unauthorized
from gateway.identity import Principal
from gateway.identity.authenticate import Identity
from gateway.settings import ApiKey, Settings, Tenant, demo_settings


def test_a_known_key_is_its_tenant() -> None:
    digest = hashlib.sha256(b"sesame").hexdigest()
    identity = Identity(Settings(tenants=[Tenant(name="acme", keys=[ApiKey(id="ci", sha256=digest)])]))
    assert identity.authenticate("Bearer sesame") == Principal("acme", "ci")
    assert identity.authenticate("bearer  sesame") == Principal("acme", "ci")


def test_the_embedded_default_accepts_the_demo_key() -> None:
    assert Identity(demo_settings()).authenticate("Bearer roundhouse-demo").tenant == "demo"


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
def test_anything_else_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthorized):
        Identity(demo_settings()).authenticate(header)


def test_the_error_does_not_repeat_the_key() -> None:
    with pytest.raises(Unauthorized) as caught:
        Identity(demo_settings()).authenticate("Bearer top-secret-key")
    assert "top-secret-key" not in caught.value.message
