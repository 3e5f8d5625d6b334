"""What may change while a gateway runs, and that a change is taken over whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gateway.config.configuration import ALL, CHANGEABLE, Configuration, changes, fixed
from gateway.config.settings import (
    TIERS,
    ApiKeySettings,
    PoolSettings,
    PriceSettings,
    Settings,
    SettingsError,
    TenantSettings,
    demo_settings,
)
from gateway.records.section import Section

pytestmark = pytest.mark.anyio

BASE = msgspec.structs.replace(
    demo_settings(), pools=[PoolSettings(tier=tier, name=f"own-{tier}", model="/m") for tier in TIERS]
)


def changed(section: str, **fields: object) -> Settings:
    return msgspec.structs.replace(BASE, **{section: msgspec.structs.replace(getattr(BASE, section), **fields)})


def with_pool(**fields: object) -> Settings:
    return msgspec.structs.replace(BASE, pools=[msgspec.structs.replace(BASE.pools[0], **fields), *BASE.pools[1:]])


@pytest.mark.parametrize(
    ("new", "paths"),
    [
        (changed("router", medium_from=0.1), ["router.medium_from"]),
        (changed("server", idle_timeout=5.0, drain_timeout=1.0), ["server.drain_timeout", "server.idle_timeout"]),
        (msgspec.structs.replace(BASE, tenants=[*BASE.tenants, TenantSettings(name="a")]), ["tenants.a"]),
        (msgspec.structs.replace(BASE, tenants=[TenantSettings(name="demo")]), ["tenants.demo"]),
        (msgspec.structs.replace(BASE, prices=[PriceSettings(name="m", input=1, output=2)]), ["prices.m"]),
        (with_pool(cost=2.0), ["pools.small.cost"]),
        (with_pool(spare_replicas=1, budget=2.0), ["pools.small.budget", "pools.small.spare_replicas"]),
        (changed("scaling", hold_seconds=5.0), ["scaling.hold_seconds"]),
    ],
)
def test_what_may_change_is_named(new: Settings, paths: list[str]) -> None:
    assert changes(BASE, new) == changes(new, BASE) == paths
    assert fixed(BASE, new) == []


@pytest.mark.parametrize(
    ("new", "paths"),
    [
        (changed("server", port=1, idle_timeout=5.0), ["server.port"]),
        (changed("redis", url="redis://other"), ["redis.url"]),
        (changed("adapters", registry="elsewhere"), ["adapters.registry"]),
        (with_pool(model="elsewhere"), ["pools.small.model"]),
        (with_pool(engines=["ws://127.0.0.1:1"]), ["pools.small.engines"]),  # its engine is started here
        (with_pool(max_replicas=2), ["pools.small.max_replicas"]),  # one engine is, and no controller runs
        (msgspec.structs.replace(BASE, pools=BASE.pools[1:]), ["pools.small"]),
    ],
)
def test_what_cannot_change_is_named(new: Settings, paths: list[str]) -> None:
    assert fixed(BASE, new) == fixed(new, BASE) == paths


def test_bounds_of_a_pool_whose_engines_follow_the_load_may_change() -> None:
    old, new = with_pool(max_replicas=2), with_pool(min_replicas=2, max_replicas=4)
    assert fixed(old, new) == []


def test_every_field_that_may_change_exists() -> None:
    for section, fields in CHANGEABLE.items():
        kind = type(getattr(BASE, section)) if section not in ("tenants", "pools", "prices") else None
        if kind is not None and fields is not ALL:
            assert issubclass(kind, Section)
            assert fields <= {field.name for field in msgspec.structs.fields(kind)}


class Part:
    """Follows a configuration, and fails to if told."""

    def __init__(self) -> None:
        self.seen: list[Settings] = []
        self.error: Exception | None = None

    async def prepare(self, settings: Settings) -> Callable[[], None]:
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        return lambda: self.seen.append(settings)


@pytest.mark.parametrize("error", [SettingsError("no such list"), RuntimeError("a fault of ours")])
async def test_if_one_part_cannot_none_does(error: Exception) -> None:
    new = changed("router", medium_from=0.1)
    configuration = Configuration(BASE, lambda: new)
    outcomes: list[str] = []
    configuration.observe = outcomes.append
    parts = [Part(), Part()]
    for part in parts:
        configuration.add(part.prepare)
    parts[1].error = error
    with pytest.raises(SettingsError):
        await configuration.reload()
    assert configuration.settings is BASE
    assert not parts[0].seen
    parts[1].error = None
    assert await configuration.reload() == ["router.medium_from"]
    assert [part.seen for part in parts] == [[new], [new]]
    assert configuration.settings is new
    assert await configuration.reload() == []
    assert outcomes == ["refused", "changed", "unchanged"]


async def test_nothing_is_taken_over_before_the_parts_are_there() -> None:
    configuration = Configuration(BASE, lambda: changed("router", medium_from=0.1))
    with pytest.raises(SettingsError, match="still starting"):
        await configuration.reload()
    assert configuration.settings is BASE


async def test_reloads_come_one_after_the_other() -> None:
    versions = [changed("router", large_from=0.5 + index / 100) for index in range(5)]
    waiting = iter(versions)
    configuration, part = Configuration(BASE, lambda: next(waiting)), Part()
    configuration.add(part.prepare)
    await asyncio.gather(*(configuration.reload() for _ in versions))
    assert part.seen == versions


@pytest.mark.parametrize("watched", [True, False])
async def test_a_file_is_watched_if_it_says_so(tmp_path: Path, watched: bool) -> None:
    file = tmp_path / "roundhouse.toml"
    file.write_text("1")
    settings = changed("server", watch_config=watched)
    read: list[str] = []
    configuration, part = Configuration(settings, lambda: settings, file=file), Part()
    configuration.add(part.prepare)
    configuration.observe = read.append
    await configuration.look()
    assert read == []
    file.write_text("12")
    for _ in range(2):
        await configuration.look()
    assert read == ["unchanged"] * watched


def test_keys_may_come_and_go() -> None:
    tenant = msgspec.structs.replace(BASE.tenants[0], keys=[ApiKeySettings(id="new", sha256="0" * 64)])
    assert fixed(BASE, msgspec.structs.replace(BASE, tenants=[tenant])) == []
