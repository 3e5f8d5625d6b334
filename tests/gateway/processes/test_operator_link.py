"""The addresses that `serve` prints and gives, on a real Redis."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from redis.asyncio import Redis

from gateway.access.sign_in_links import SignInLinks
from gateway.config.identity import IdentitySettings, IssuerSettings
from gateway.config.settings import (
    AdminSettings,
    ApiKeySettings,
    RedisSettings,
    ServerSettings,
    Settings,
    SettingsError,
    TenantSettings,
    demo_settings,
)
from gateway.errors import Unavailable
from gateway.processes.operator_link import OperatorLink

pytestmark = pytest.mark.anyio

URL = "http://127.0.0.1:8080"


def settings(redis_url: str, **sections: Any) -> Settings:
    return msgspec.structs.replace(demo_settings(), redis=RedisSettings(url=redis_url), **sections)


async def test_an_address_signs_in(redis_url: str) -> None:
    address = urlsplit(await OperatorLink(settings(redis_url), URL).make())
    assert (f"{address.scheme}://{address.netloc}", address.path) == (URL, "/auth/link")
    async with Redis.from_url(redis_url) as redis:
        [secret] = parse_qs(address.query)["secret"]
        assert (await SignInLinks(redis).redeem(secret, "demo")).operator


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:9001", "http://127.0.0.1:9001"),
        ("[::1]:9001", "http://[::1]:9001"),
        ("0.0.0.0:9001", "http://127.0.0.1:9001"),
    ],
)
async def test_it_leads_to_where_the_admin_api_is(redis_url: str, listen: str, url: str) -> None:
    link = OperatorLink(settings(redis_url, admin=AdminSettings(listen=listen)), URL)
    assert (await link.make()).startswith(f"{url}/auth/link?")


async def test_there_is_none_where_no_browser_comes(redis_url: str) -> None:
    with pytest.raises(SettingsError, match=r"admin\.listen"):
        await OperatorLink(settings(redis_url, admin=AdminSettings(listen="unix:/run/admin.sock")), URL).make()


@pytest.mark.parametrize(
    ("sections", "offered"),
    [
        ({}, True),
        ({"tenants": []}, True),
        ({"server": ServerSettings(host="0.0.0.0")}, False),
        ({"admin": AdminSettings(listen="127.0.0.1:9001")}, False),
        ({"tenants": [TenantSettings("ops", keys=[ApiKeySettings("root", "0" * 64, operator=True)])]}, False),
        (
            {
                "identity": IdentitySettings(
                    issuers=[IssuerSettings("idp", "https://idp", ["x"], tenant="demo", operators=["ann"])]
                )
            },
            False,
        ),
    ],
    ids=["the demo", "no tenants", "other machines", "another listener", "an operator's key", "an operator's name"],
)
async def test_the_start_offers_one_where_nobody_administers_yet(
    redis_url: str, sections: dict[str, Any], offered: bool
) -> None:
    said: list[str] = []
    await OperatorLink(settings(redis_url, **sections), URL).offer(said.append)
    assert [f"{URL}/auth/link?secret=" in line for line in said] == [True] * offered


async def test_a_start_without_redis_goes_on() -> None:
    link = OperatorLink(settings("unix:///nonexistent/redis.sock"), URL)
    with pytest.raises(Unavailable):
        await link.make()
    said: list[str] = []
    await link.offer(said.append)
    assert len(said) == 1 and "secret" not in said[0]
