"""The registry, in a folder and in an object store: what gets in, what a name means, and what a crash leaves behind."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path
from random import Random

import fsspec
import msgspec
import pytest

from engine.adapters import format, storage
from engine.adapters.format import CONFIG, WEIGHTS, check_adapter
from engine.adapters.registry import MANIFEST, AdapterError, AdapterRegistry, NameTaken, Pointer, RegistryError
from tests.engine.adapters.writers import add, point_names
from tests.engine.conftest import Checkpoint


class Clock:
    """Seconds since the epoch, as a test sets them."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        import time

        return time.time() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["folder", "file", "memory"])
def registry(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AdapterRegistry:
    url = {
        "folder": str(tmp_path / "registry"),
        "file": f"file://{tmp_path}/registry",
        "memory": f"memory://{tmp_path.name}",
    }[request.param]
    return AdapterRegistry(url, cache=tmp_path / "cache", clock=clock)


def test_a_version_is_what_was_added(registry: AdapterRegistry, written: list[Path], base: Path) -> None:
    manifest = registry.add(written[0], base)
    assert manifest == check_adapter(written[0], base)
    assert registry.manifest(manifest.version) == manifest
    folder = registry.path(manifest.version)
    for name in (CONFIG, WEIGHTS):
        assert (folder / name).read_bytes() == (written[0] / name).read_bytes()


def test_adding_twice_is_adding_once(registry: AdapterRegistry, written: list[Path], base: Path) -> None:
    first, second = registry.add(written[0], base), registry.add(written[0], base)
    assert first == second
    assert list(registry.versions()) == [first.version]


def test_the_order_of_the_configs_keys_makes_no_version(registry: AdapterRegistry, adapter: Path, base: Path) -> None:
    before = registry.add(adapter, base).version
    config = json.loads((adapter / CONFIG).read_text())
    (adapter / CONFIG).write_text(json.dumps(dict(reversed(config.items())), indent=4))
    assert registry.add(adapter, base).version == before
    (adapter / CONFIG).write_text(json.dumps(config | {"lora_alpha": 5}))
    assert registry.add(adapter, base).version != before


def test_a_version_may_fit_several_bases(
    registry: AdapterRegistry, written: list[Path], base: Path, checkpoint: Checkpoint
) -> None:
    version = registry.add(written[0], base).version
    other = checkpoint("llama", seed=9)
    manifest = registry.add(written[0], other)
    assert manifest.version == version
    assert len(manifest.bases) == len(set(manifest.bases)) == 2
    assert registry.manifest(version) == manifest


def test_a_bad_file_never_gets_in(registry: AdapterRegistry, adapter: Path, base: Path) -> None:
    content = (adapter / WEIGHTS).read_bytes()
    (adapter / WEIGHTS).write_bytes(content[:-4])
    with pytest.raises(AdapterError):
        registry.add(adapter, base)
    (adapter / WEIGHTS).unlink()
    with pytest.raises(AdapterError, match=r"adapter_model\.safetensors is missing"):
        registry.add(adapter, base)
    assert registry.versions() == {}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("half of the weights", r"adapter_model\.safetensors (is damaged: bytes 0 to [\d,]+|was cut off)"),
        ("more weights", r"adapter_model\.safetensors is damaged: bytes 0 to [\d,]+"),
        ("no weights", r"adapter_model\.safetensors is missing"),
        ("no config", r"adapter_config\.json is missing"),
        ("a space more in the config", r"adapter_config\.json is damaged"),
    ],
)
def test_damaged_files_are_not_handed_out_until_the_adapter_is_added_again(
    damage: str, said: str, tmp_path: Path, written: list[Path], base: Path
) -> None:
    """Clients are told so, and not where on the server they are."""
    version = AdapterRegistry(str(tmp_path)).add(written[0], base).version
    folder = tmp_path / "objects" / version
    content = (folder / WEIGHTS).read_bytes()
    match damage:
        case "half of the weights":
            (folder / WEIGHTS).write_bytes(content[: len(content) // 2])
        case "more weights":
            (folder / WEIGHTS).write_bytes(content + b"more")
        case "a space more in the config":
            (folder / CONFIG).write_bytes((folder / CONFIG).read_bytes() + b" ")
        case _:
            (folder / (WEIGHTS if damage == "no weights" else CONFIG)).unlink()
    with pytest.raises(AdapterError, match=f"^{said} in version {version}; add the adapter again$") as caught:
        AdapterRegistry(str(tmp_path)).path(version)
    assert str(tmp_path) not in str(caught.value)
    assert AdapterRegistry(str(tmp_path)).add(written[0], base).version == version
    assert AdapterRegistry(str(tmp_path)).path(version) == folder


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, MANIFEST])
def test_one_changed_byte_anywhere_is_refused_by_name_and_place(
    name: str, tmp_path: Path, written: list[Path], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format, "CHUNK_BYTES", 4096)
    version = AdapterRegistry(str(tmp_path)).add(written[0], base).version
    file = tmp_path / "objects" / version / name
    content, random = file.read_bytes(), Random(name)
    for at in random.sample(range(len(content)), 50):
        damaged = bytearray(content)
        damaged[at] ^= random.randrange(1, 256)
        file.write_bytes(damaged)
        with pytest.raises((AdapterError, RegistryError)) as caught:
            AdapterRegistry(str(tmp_path)).path(version)
        assert name in str(caught.value) and "add the adapter again" in str(caught.value)
        begin = at // 4096 * 4096
        assert name != WEIGHTS or f"bytes {begin:,} to {min(begin + 4096, len(content)) - 1:,}" in str(caught.value)


def test_files_of_another_adapter_are_refused_though_its_manifest_came_with_them(
    tmp_path: Path, written: list[Path], base: Path
) -> None:
    registry = AdapterRegistry(str(tmp_path))
    versions = [registry.add(folder, base).version for folder in written[:2]]
    folders = [tmp_path / "objects" / version for version in versions]
    shutil.rmtree(folders[0])
    shutil.copytree(folders[1], folders[0])
    with pytest.raises(RegistryError, match=r"manifest\.json"):
        AdapterRegistry(str(tmp_path)).path(versions[0])


def test_a_fetched_file_is_checked_before_it_is_used_and_fetched_again_when_it_was_damaged(
    tmp_path: Path, written: list[Path], base: Path
) -> None:
    url = f"memory://{tmp_path.name}"
    version = AdapterRegistry(url, cache=tmp_path / "one").add(written[0], base).version
    cached = AdapterRegistry(url, cache=tmp_path / "one").path(version) / WEIGHTS
    content = cached.read_bytes()
    cached.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert (AdapterRegistry(url, cache=tmp_path / "one").path(version) / WEIGHTS).read_bytes() == content
    files = fsspec.filesystem("memory")
    path = f"/{tmp_path.name}/objects/{version}/{WEIGHTS}"
    files.pipe_file(path, files.cat_file(path)[:-1] + b"\x00\x00")
    with pytest.raises(AdapterError, match="is damaged: bytes 0 to"):
        AdapterRegistry(url, cache=tmp_path / "two").path(version)
    assert not (tmp_path / "two" / "objects").exists()


def test_remote_files_are_fetched_once(tmp_path: Path, written: list[Path], base: Path) -> None:
    registry = AdapterRegistry(f"memory://{tmp_path.name}", cache=tmp_path / "cache")
    version = registry.add(written[0], base).version
    folder = registry.path(version)
    fsspec.filesystem("memory").rm(f"/{tmp_path.name}/objects/{version}/{WEIGHTS}")
    assert registry.path(version) == folder
    assert AdapterRegistry(f"memory://{tmp_path.name}", cache=tmp_path / "cache").path(version) == folder


@pytest.mark.parametrize("version", ["", "..", "../names.json", "x" * 64, "0" * 63, "0" * 64 + "\n", "0" * 64])
def test_what_is_no_version_is_never_a_path(registry: AdapterRegistry, version: str) -> None:
    for ask in (registry.manifest, registry.path):
        with pytest.raises(RegistryError, match="no adapter version"):
            ask(version)


def test_a_version_can_be_named_by_its_beginning(registry: AdapterRegistry, written: list[Path], base: Path) -> None:
    versions = [registry.add(folder, base).version for folder in written]
    assert registry.find(versions[0][:16]) == versions[0]
    with pytest.raises(RegistryError, match="give more of it"):
        registry.find("")
    with pytest.raises(RegistryError, match="begins with 'xyz'"):
        registry.find("xyz")


def test_a_name_leads_to_a_version(registry: AdapterRegistry, written: list[Path], base: Path) -> None:
    version = registry.add(written[0], base).version
    registry.point("pirate", version, model="demo", tenants=("acme",), pinned=True, description="Arr.")
    pointer = registry.resolve("pirate")
    assert (pointer.version, pointer.model, pointer.description) == (version, "demo", "Arr.")
    assert pointer.pinned
    assert pointer.updated > 0
    assert pointer.allows("acme")
    assert not pointer.allows("other")
    assert registry.names() == {"pirate": pointer}


def test_a_swap_keeps_who_may_use_it(registry: AdapterRegistry, written: list[Path], base: Path) -> None:
    first, second = (registry.add(folder, base).version for folder in written)
    registry.point("pirate", first, model="demo", tenants=("acme",), pinned=True, description="Arr.")
    stamp = registry.stamp()
    assert registry.swap("pirate", second).version == first
    assert registry.stamp() != stamp
    pointer = registry.resolve("pirate")
    assert (pointer.version, pointer.tenants, pointer.pinned, pointer.description) == (second, ("acme",), True, "Arr.")


def test_a_name_remembers_what_it_led_to(
    registry: AdapterRegistry, clock: Clock, written: list[Path], base: Path
) -> None:
    """Newest first, each version once, until others may use the name."""
    first, second = (registry.add(folder, base).version for folder in written)
    registry.point("pirate", first, model="demo", tenants=("acme",))
    assert registry.resolve("pirate").earlier == ()
    clock.ahead = 100
    registry.swap("pirate", second)
    (earlier,) = registry.resolve("pirate").earlier
    assert earlier.version == first and earlier.until == registry.resolve("pirate").updated
    registry.pin("pirate")
    assert registry.resolve("pirate").earlier == (earlier,)
    registry.point("pirate", first, model="demo", tenants=("acme",))
    assert [each.version for each in registry.resolve("pirate").earlier] == [second]
    edited = registry.edit("pirate", lambda pointer: msgspec.structs.replace(pointer, version=second))
    assert edited is not None and edited == registry.resolve("pirate")
    assert [each.version for each in edited.earlier] == [first]
    registry.edit("pirate", lambda pointer: msgspec.structs.replace(pointer, tenants=None))
    assert registry.resolve("pirate").earlier == ()


def test_names_are_pinned_and_removed(registry: AdapterRegistry, written: list[Path], base: Path) -> None:
    version = registry.add(written[0], base).version
    registry.point("pirate", version, model="demo")
    registry.pin("pirate")
    assert registry.resolve("pirate").pinned
    registry.pin("pirate", False)
    assert not registry.resolve("pirate").pinned
    registry.remove("pirate")
    assert registry.names() == {}
    assert registry.manifest(version).version == version
    for act in (registry.remove, registry.pin, registry.resolve):
        with pytest.raises(RegistryError, match="no adapter is named 'pirate'"):
            act("pirate")


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "ä", "x" * 129, "a\n", "..//", "auto", "small", "medium", "large", "demo"]
)
def test_some_names_cannot_be_used(registry: AdapterRegistry, name: str, written: list[Path], base: Path) -> None:
    version = registry.add(written[0], base).version
    with pytest.raises(RegistryError, match=r"cannot be a name|name of a model or tier"):
        registry.point(name, version, model="demo")
    assert registry.names() == {}


def test_a_name_cannot_lead_nowhere(registry: AdapterRegistry, written: list[Path], base: Path) -> None:
    with pytest.raises(RegistryError, match="no adapter version"):
        registry.point("pirate", "0" * 64, model="demo")
    registry.point("pirate", registry.add(written[0], base).version, model="demo")
    with pytest.raises(RegistryError, match="no adapter version"):
        registry.swap("pirate", "0" * 64)


def test_a_new_name_must_not_be_taken(registry: AdapterRegistry, written: list[Path], base: Path) -> None:
    """If that is what was asked for; the old pointer stays."""
    versions = [registry.add(folder, base).version for folder in written[:2]]
    registry.point("pirate", versions[0], model="tiny", new=True)
    with pytest.raises(NameTaken):
        registry.point("pirate", versions[1], model="tiny", new=True)
    assert registry.resolve("pirate").version == versions[0]


def test_an_edit_happens_whole_or_not_at_all(registry: AdapterRegistry, written: list[Path], base: Path) -> None:
    """It sees the present pointer; what it raises changes nothing, nor does a version that is not there."""
    version = registry.add(written[0], base).version
    registry.point("pirate", version, model="tiny", description="arr")
    edited = registry.edit("pirate", lambda pointer: msgspec.structs.replace(pointer, drained=True))
    assert edited == registry.resolve("pirate")
    assert (edited.drained, edited.description) == (True, "arr")

    def refuse(pointer: Pointer) -> Pointer:
        raise KeyError(pointer.version)

    with pytest.raises(KeyError):
        registry.edit("pirate", refuse)
    with pytest.raises(RegistryError):
        registry.edit("pirate", lambda pointer: msgspec.structs.replace(pointer, version="0" * 64))
    with pytest.raises(RegistryError):
        registry.edit("nobody", lambda pointer: pointer)
    assert registry.resolve("pirate") == edited


def test_pruning_deletes_what_no_name_needs(
    registry: AdapterRegistry, clock: Clock, written: list[Path], base: Path
) -> None:
    used, unused = (registry.add(folder, base).version for folder in written)
    registry.point("pirate", used, model="demo")
    assert registry.prune(older_than=3600) == []
    clock.ahead = 4000
    assert registry.prune(older_than=3600) == [unused]
    assert list(registry.versions()) == [used]
    assert registry.path(used).is_dir()
    with pytest.raises(RegistryError):
        registry.path(unused)


def test_a_damaged_list_of_names_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text('{"names": {"a": {"version": "no"}}}')
    with pytest.raises(RegistryError, match="restore it"):
        AdapterRegistry(str(tmp_path)).names()


def test_an_unknown_kind_of_address_is_explained() -> None:
    with pytest.raises(RegistryError, match="nosuch"):
        AdapterRegistry("nosuch://bucket")


def test_a_crash_while_names_are_written_leaves_the_old_ones(
    tmp_path: Path, written: list[Path], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = AdapterRegistry(str(tmp_path))
    version = registry.add(written[0], base).version
    registry.point("pirate", version, model="demo")

    def crash(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", crash)
        registry.point("formal", version, model="demo")
    assert list(AdapterRegistry(str(tmp_path)).names()) == ["pirate"]
    registry.point("formal", version, model="demo")
    assert sorted(registry.names()) == ["formal", "pirate"]


def test_a_crash_while_an_adapter_is_added_leaves_no_version(
    tmp_path: Path, clock: Clock, written: list[Path], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = AdapterRegistry(str(tmp_path), clock=clock)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        # As if killed: what the process would have cleaned up stays.
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        patch.setattr(storage.FolderStorage, "publish", _killed)
        registry.add(written[0], base)
    assert registry.versions() == {}
    assert list((tmp_path / "staging").iterdir())
    clock.ahead = 7200
    registry.prune(older_than=0)
    assert not list((tmp_path / "staging").iterdir())
    assert registry.add(written[0], base).version in registry.versions()


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path, written: list[Path], base: Path) -> None:
    registry = AdapterRegistry(str(tmp_path))
    version = registry.add(written[0], base).version
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=point_names, args=(str(tmp_path), writer, 20, version)) for writer in range(2)]
    for process in writers:
        process.start()
    while any(process.is_alive() for process in writers):
        registry.names()  # what is read is always whole
    assert [process.exitcode for process in writers] == [0, 0]
    assert len(registry.names()) == 40


def test_processes_that_add_the_same_adapter_agree(tmp_path: Path, written: list[Path], base: Path) -> None:
    context = multiprocessing.get_context("spawn")
    adders = [context.Process(target=add, args=(str(tmp_path), written[0], base)) for _ in range(2)]
    for process in adders:
        process.start()
    for process in adders:
        process.join()
    assert [process.exitcode for process in adders] == [0, 0]
    registry = AdapterRegistry(str(tmp_path))
    assert len(registry.versions()) == 1
    assert not list((tmp_path / "staging").iterdir())
