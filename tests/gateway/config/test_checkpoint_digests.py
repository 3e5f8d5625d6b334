"""A pool's checkpoint with another digest than it must have is refused before anything is started."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.checkpoint.digests import checkpoint_digest, read_digest
from engine.checkpoint.manifest import describe, write_manifest
from gateway.config import checkpoints
from gateway.config.model_store import ModelStoreSettings
from gateway.config.settings import DEMO, PoolSettings, Settings, SettingsError
from gateway.models.catalogue import catalogue
from gateway.models.store import ModelStore, StoredModel


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO / "model", tmp_path / "small"))


def test_a_folder_with_its_digest_is_served_and_a_changed_one_is_not(folder: Path, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "store")
    pool = PoolSettings(tier="small", name="tiny", model=str(folder), sha256=checkpoint_digest(folder))
    checkpoints.check([pool], store)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(SettingsError, match=r"pools: tiny: model: .* has the sha256 .* correct pools\.model"):
        checkpoints.check([pool], store)


def test_a_checkpoint_is_compared_with_its_manifest_where_every_byte_is_read(folder: Path, tmp_path: Path) -> None:
    """At a start that is left to the engine, unless `sha256` is the manifest's and it was exchanged too."""
    store = ModelStore(tmp_path / "store")
    listing = write_manifest(folder, describe(folder))
    pool = PoolSettings(tier="small", name="tiny", model=str(folder), sha256=read_digest(listing))
    checkpoints.check([pool], store, read=True)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    checkpoints.check([pool], store)
    with pytest.raises(SettingsError, match=r"model\.safetensors is damaged or exchanged: bytes 0 to"):
        checkpoints.check([pool], store, read=True)
    write_manifest(folder, describe(folder))
    with pytest.raises(SettingsError, match="has the sha256"):
        checkpoints.check([pool], store)


def test_a_model_of_the_store_must_be_what_was_pulled_without_a_digest_in_the_settings(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "store")
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")
    model = StoredModel("tiny", "tiny.gguf", 4, checkpoint_digest(file), "hf:acme/tiny/tiny.gguf")
    store.adopt(file, model.sha256)
    path = store.add(model)
    pool = PoolSettings(tier="small", name="tiny", model=str(path))
    assert checkpoints.expected_digest(pool, store) == model.sha256
    path.write_bytes(b"FUGG")
    with pytest.raises(SettingsError, match="mend it: roundhouse models pull hf:acme/tiny/tiny"):
        checkpoints.check([pool], store)


def test_a_file_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    pool = PoolSettings(tier="small", name="tiny", model=str(tmp_path / "gone.gguf"), sha256="0" * 64)
    with pytest.raises(SettingsError, match=r"pools: tiny: model: .*No such file.*gone"):
        checkpoints.check([pool], ModelStore(tmp_path / "store"))


def test_a_model_of_the_catalogue_that_is_not_in_the_store_is_awaited(tmp_path: Path) -> None:
    """Another file that is missing is not: nobody could fetch it."""
    small = catalogue()[0]
    store = ModelStore(tmp_path / "store")
    pools = [
        PoolSettings(tier="small", name="mine", model=str(store.path(small))),
        PoolSettings(tier="medium", name="other", model=str(tmp_path / "gone.gguf")),
    ]
    settings = Settings(pools=pools, models=ModelStoreSettings(store=str(store.folder)))
    assert checkpoints.awaited(settings) == [(pools[0], small)]
    assert checkpoints.present(settings) == pools[1:]
    store.path(small).parent.mkdir(parents=True)
    store.path(small).write_bytes(b"GGUF")
    assert checkpoints.awaited(settings) == []


def test_only_tiers_whose_checkpoint_cannot_be_used_are_left_out(folder: Path, tmp_path: Path) -> None:
    """Where none would be left, nothing can be served."""
    good = PoolSettings(tier="small", name="good", model=str(DEMO / "model"))
    bad = PoolSettings(tier="large", name="bad", model=str(folder), sha256="0" * 64)
    models = ModelStoreSettings(store=str(tmp_path / "store"))
    wrong = checkpoints.unusable(Settings(pools=[good, bad], models=models))
    assert list(wrong) == ["bad"] and "pools: bad: model:" in str(wrong["bad"])
    with pytest.raises(SettingsError, match="pools: bad: model:"):
        checkpoints.unusable(Settings(pools=[bad], models=models))
