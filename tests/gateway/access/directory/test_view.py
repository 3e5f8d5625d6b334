"""What a gateway knows of the directory without asking."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from redis.asyncio import Redis

from gateway.access.directory import view as view_module
from gateway.access.directory.audit_log import LogSetBack
from gateway.access.directory.change import Configured
from gateway.access.directory.schema import AUDIT_KEY
from gateway.access.directory.store import Directory
from gateway.access.directory.view import View, configured
from gateway.config.settings import demo_settings
from gateway.errors import Unavailable
from gateway.records.directory import Key, Price, Route, Target, Tenant, User
from tests.conftest import redis_server
from tests.gateway.access.directory.conftest import key
from tests.gateway.conftest import eventually

pytestmark = pytest.mark.anyio

ACME = Tenant(name="acme")
ANNA = User(id="user_1", tenant="acme", subject="anna")
CHAT = Route(name="chat", targets=[Target(model="m", weight=1)])


@pytest.mark.parametrize("most_entries", [1000, 1], ids=["by entries", "by reading everything"])
async def test_changes_are_followed(directory: Directory, monkeypatch: pytest.MonkeyPatch, most_entries: int) -> None:
    """What was created, changed and deleted since the last look."""
    monkeypatch.setattr(view_module, "_MOST_ENTRIES", most_entries)
    view = View(directory)
    for record in (ACME, Tenant(name="b"), ANNA, key(1), key(2), Price(name="m", input=1, output=2)):
        await directory.write(record, actor="test")
    await view.refresh()
    assert view.tenants().keys() == {"acme", "b"}
    first, second = await view.key(key(1).digest), await view.key(key(2).digest)
    anna = await view.user("acme", "anna")
    assert first and second and anna
    assert await view.key("f" * 64) is None

    tenant = await directory.write(Tenant(name="acme", weight=2.0), actor="test")
    price = await directory.write(Price(name="a", input=3, output=4), actor="test")
    route = await directory.write(CHAT, actor="test")
    for kind, identity in ((Tenant, "b"), (Price, "m"), (Key, "key_1"), (User, "user_1")):
        await directory.delete(kind, identity, actor="test")
    third = await directory.write(key(3, digest="f" * 64), actor="test")
    assert view.tenant("b") is not None
    await view.refresh()
    assert view.tenants() == {"acme": tenant}
    assert (view.price("m"), view.price("m", "a"), view.route("chat")) == (None, price, route)
    assert view.known_key(key(1).digest) is None
    assert await view.key(key(1).digest) is None
    assert await view.key(key(2).digest) == second
    assert await view.key("f" * 64) == third
    assert await view.user("acme", "anna") is None


async def test_a_key_that_nothing_happened_to_stays(directory: Directory) -> None:
    """A change of another record costs it no second read."""
    view = View(directory)
    await directory.write(ACME, actor="test")
    await directory.write(key(1), actor="test")
    await view.refresh()
    known = await view.key(key(1).digest)
    await directory.write(Tenant(name="acme", weight=2.0), actor="test")
    await view.refresh()
    assert view.known_key(key(1).digest) == known is not None


async def test_the_configuration_comes_first(redis: Redis) -> None:
    """Its tenants, keys and prices; also those of a new file."""
    settings = demo_settings()
    directory = Directory(redis)
    await directory.write(Tenant(name="demo", weight=2.0), actor="test")
    view = View(directory)
    view.configure(configured(settings))
    await view.refresh()
    tenant = view.tenant("demo")
    assert tenant is not None and (tenant.weight, tenant.revision) == (1.0, 0)
    digest = settings.tenants[0].keys[0].sha256
    known = view.known_key(digest)
    assert known is not None and known == await view.key(digest)
    assert (known.tenant, known.id) == ("demo", "demo")
    view.configure(Configured(prices={"m": Price(name="m", input=1, output=1)}))
    assert view.tenants()["demo"].weight == 2.0
    assert view.known_key(digest) is None
    assert view.price("m", "adapter") == view.price("m") is not None


async def test_an_adapters_price_comes_before_its_models(directory: Directory) -> None:
    """Which has it otherwise."""
    view = View(directory)
    base = await directory.write(Price(name="m", input=1, output=2), actor="test")
    own = await directory.write(Price(name="a", input=3, output=4), actor="test")
    await view.refresh()
    assert (view.price("m"), view.price("m", "a"), view.price("m", "b")) == (base, own, base)


async def test_without_redis_the_last_copy_stays_in_force() -> None:
    """What has not been seen before cannot be checked. Afterwards everything goes on."""
    server = redis_server()
    now = 100.0
    with server as url:
        async with Redis.from_url(url) as redis:
            directory = Directory(redis)
            view = View(directory, clock=lambda: now)
            tenant = await directory.write(ACME, actor="test")
            await directory.write(key(1), actor="test")
            await view.refresh()
            known = await view.key(key(1).digest)
            server.stop()
            now += 7
            with pytest.raises(Unavailable):
                await view.refresh()
            assert view.age == 7
            assert (view.tenant("acme"), await view.key(key(1).digest)) == (tenant, known)
            with pytest.raises(Unavailable):
                await view.key(key(2).digest)
            server.start()  # empty: nothing that was seen is forgotten for it
            with pytest.raises(LogSetBack):
                await view.refresh()
            assert view.tenants() == {"acme": tenant}


async def test_a_log_that_was_tampered_with_is_not_followed(redis: Redis, directory: Directory) -> None:
    """Everything is read instead."""
    view = View(directory)
    await directory.write(ACME, actor="test")
    await view.refresh()
    tenant = await directory.write(Tenant(name="acme", weight=2.0), actor="test")
    await redis.delete(AUDIT_KEY)
    await redis.xadd(AUDIT_KEY, {"entry": "nonsense"}, id="2-0")
    await view.refresh()
    assert view.tenant("acme") == tenant


async def test_it_goes_on_in_the_background(directory: Directory) -> None:
    """From its start until it is closed."""
    view = View(directory, poll=0.01)
    assert not view.complete
    await view.start()
    try:
        assert view.complete
        await directory.write(ACME, actor="test")
        await eventually(lambda: view.tenant("acme") is not None)
    finally:
        await view.aclose()


@pytest.mark.parametrize(
    ("policy", "limit", "warned"),
    [("allkeys-lru", "100mb", True), ("allkeys-lru", "0", False), ("volatile-lfu", "100mb", False)],
)
async def test_a_redis_that_may_drop_records_is_warned_of(
    redis: Redis, directory: Directory, caplog: pytest.LogCaptureFixture, policy: str, limit: str, warned: bool
) -> None:
    """At the start."""
    await redis.config_set("maxmemory-policy", policy)
    await redis.config_set("maxmemory", limit)
    view = View(directory)
    try:
        await view.start()
        assert ("may drop tenants and keys" in caplog.text) is warned
    finally:
        await view.aclose()
        await redis.config_set("maxmemory", "0")
        await redis.config_set("maxmemory-policy", "noeviction")


async def test_it_starts_without_redis(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the configuration says, and looks for the rest until it is there. Says so once, not at each look."""
    caplog.set_level("INFO")
    server = redis_server()
    async with Redis.from_url(server.url) as redis:
        view = View(Directory(redis, configured=configured(demo_settings())), poll=0.01)
        await view.start()
        try:
            assert not view.complete
            assert view.tenant("demo") is not None
            looks = Mock(wraps=view.refresh)
            monkeypatch.setattr(view, "refresh", looks)
            await eventually(lambda: looks.call_count > 3)
            with server:
                await eventually(lambda: "answers again" in caplog.text)
                assert view.complete
                assert caplog.text.count("does not answer") == 1
        finally:
            await view.aclose()
