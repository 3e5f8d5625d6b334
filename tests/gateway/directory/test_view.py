"""What a gateway knows of the directory without asking."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from gateway.directory.records import Key, Price, Tenant
from gateway.directory.store import Directory
from gateway.directory.view import View, configured
from gateway.settings import demo_settings

pytestmark = pytest.mark.anyio


async def test_a_change_is_followed(redis: Redis) -> None:
    """A new price, a changed tenant, a deleted key."""
    directory = Directory(redis, configured=configured(demo_settings()))
    view = View(directory)
    await directory.write(Tenant(name="acme"), actor="test")
    key = await directory.write(Key(id="k", tenant="acme", digest="a" * 64), actor="test")
    await view.refresh()
    assert await view.key("a" * 64) == view.known_key("a" * 64) == key
    changed = await directory.write(Tenant(name="acme", weight=2.0), actor="test")
    price = await directory.write(Price(name="m", input=1, output=2), actor="test")
    await directory.delete(Key, "k", actor="test")
    await view.refresh()
    assert view.tenants() == {"acme": changed, "demo": view.tenant("demo")}
    assert view.price("m", "a") == price
    assert view.known_key("a" * 64) is None
    assert await view.key("a" * 64) is None
