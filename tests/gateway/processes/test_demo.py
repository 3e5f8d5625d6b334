"""The shipped model's adapters are there from the first start on, and what an operator did to them stays."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.adapters.manifest import encode_manifest
from engine.adapters.registry import AdapterRegistry
from engine.checkpoint.files import revision_digest
from gateway.config.settings import DEMO, AdapterSettings, PoolSettings, RedisSettings, Settings, demo_settings
from gateway.engines.adapters import registry_url
from gateway.processes.demo import ADAPTERS, register_adapters


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return msgspec.structs.replace(demo_settings(), redis=RedisSettings(data=str(tmp_path)))


def registry_of(settings: Settings) -> AdapterRegistry:
    return AdapterRegistry(registry_url(settings))


def test_all_of_them_are_registered_on_their_model(settings: Settings) -> None:
    register_adapters(settings, settings.pools)
    names = registry_of(settings).names()
    assert sorted(names) == sorted(ADAPTERS) == sorted(p.name for p in (DEMO / "adapters").iterdir() if p.is_dir())
    assert {pointer.model for pointer in names.values()} == {"roundhouse-demo-2m"}
    assert all(pointer.description for pointer in names.values())


def test_servers_that_take_messages_have_none_whatever_they_call_their_model(settings: Settings) -> None:
    demo = next(pool for pool in settings.pools if pool.model == str(DEMO / "model"))
    theirs = msgspec.structs.replace(demo, dialect="openai", context=1024, engines=["http://127.0.0.1:9"])
    register_adapters(settings, [theirs])
    assert registry_of(settings).names() == {}


def test_what_an_operator_changed_stays(settings: Settings) -> None:
    register_adapters(settings, settings.pools)
    registry = registry_of(settings)
    version = registry.resolve("json").version
    registry.remove("json")
    registry.swap("pirate", version)
    changed = registry.names()
    register_adapters(settings, settings.pools)
    assert registry.names() == changed


def test_an_adapter_that_a_later_version_brings_gets_its_name(settings: Settings) -> None:
    register_adapters(settings, settings.pools)
    registry = registry_of(settings)
    for name in ("json", "pirate"):
        registry.remove(name)
    marker = Path(registry.url) / ".roundhouse-demo-2m"
    marker.write_text("\n".join(name for name in marker.read_text().split() if name != "json"))
    register_adapters(settings, settings.pools)
    assert sorted(registry.names()) == ["json"]


def test_a_name_given_before_the_first_start_is_kept(settings: Settings) -> None:
    registry = registry_of(settings)
    version = registry.add(DEMO / "adapters" / "json", DEMO / "model").version
    registry.point("pirate", version, model="roundhouse-demo-2m")
    register_adapters(settings, settings.pools)
    assert registry.resolve("pirate").version == version
    assert sorted(registry.names()) == sorted(ADAPTERS)


def test_one_whose_manifest_is_damaged_is_registered_again(settings: Settings, tmp_path: Path) -> None:
    register_adapters(settings, settings.pools)
    registry = registry_of(settings)
    version = registry.resolve("pirate").version
    (tmp_path / "adapters" / "objects" / version / "manifest.json").write_bytes(b"{}")
    register_adapters(settings, settings.pools)
    assert registry.path(registry.resolve("pirate").version).is_dir()


def test_they_follow_a_demo_model_that_was_trained_anew(settings: Settings, tmp_path: Path) -> None:
    register_adapters(settings, settings.pools)
    registry = registry_of(settings)
    manifest = registry.manifest(registry.resolve("pirate").version)
    stale = msgspec.structs.replace(manifest, bases=("0" * 32,))
    path = tmp_path / "adapters" / "objects" / manifest.version / "manifest.json"
    path.write_bytes(encode_manifest(stale))
    register_adapters(settings, settings.pools)
    assert revision_digest(DEMO / "model") in registry.manifest(registry.resolve("pirate").version).bases


@pytest.mark.parametrize("other", ["registry", "pools"])
def test_another_installation_gets_none_of_them(settings: Settings, tmp_path: Path, other: str) -> None:
    if other == "registry":
        settings = msgspec.structs.replace(settings, adapters=AdapterSettings(registry=str(tmp_path / "own")))
    else:
        settings = msgspec.structs.replace(settings, pools=[PoolSettings(tier="small", name="own", model="/m")])
    register_adapters(settings, settings.pools)
    assert registry_of(settings).names() == {}


def test_a_name_follows_when_other_models_are_served(settings: Settings) -> None:
    """But not to a model of somebody's own that is served beside them."""
    registry = registry_of(settings)
    own = PoolSettings(tier="large", name="own", model="/m")
    settings = msgspec.structs.replace(settings, pools=[*settings.pools, own])
    version = registry.add(DEMO / "adapters" / "json", DEMO / "model").version
    registry.point("json", version, model="gone")
    registry.point("pirate", version, model="own")
    manifest = registry.manifest(version)
    path = Path(registry.url) / "objects" / version / "manifest.json"
    path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, bases=("0" * 32,))))
    register_adapters(settings, settings.pools[:1])
    names = registry_of(settings).names()
    assert names["json"].model == "roundhouse-demo-2m"
    assert names["pirate"].model == "own"
