"""The store: files by their contents, names for them, and nothing outside its folder."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.manifest import describe, read_manifest
from engine.checkpoint.verification import verify
from gateway.models.store import ModelStore, ModelStoreError, StoredModel, default_folder


def added(store: ModelStore, tmp_path: Path, name: str, data: bytes = b"weights") -> StoredModel:
    file = tmp_path / f"{name}.gguf"
    file.write_bytes(data)
    model = StoredModel(name, file.name, len(data), hashlib.sha256(data).hexdigest(), str(file))
    store.adopt(file, model.sha256)
    store.add(model)
    return model


def test_two_names_of_one_file_share_it_until_both_are_removed(store: ModelStore, tmp_path: Path) -> None:
    one, two = (added(store, tmp_path, name) for name in ("one", "two"))
    assert store.models() == [one, two]
    store.remove("one")
    assert store.model("one") is None
    assert store.path(two).read_bytes() == b"weights"
    store.remove("two")
    assert store.models() == [] and not store.blob(two.sha256).exists()
    assert (tmp_path / "one.gguf").read_bytes() == b"weights"


def test_a_model_has_a_manifest(store: ModelStore, tmp_path: Path) -> None:
    model = added(store, tmp_path, "one")
    verify(store.path(model))
    assert read_manifest(store.path(model)) == describe(store.path(model))
    store.path(model).write_bytes(b"weighty")
    with pytest.raises(CheckpointError, match=r"one\.gguf is damaged"):
        verify(store.path(model))


def test_a_file_is_linked_and_never_copied(store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = added(store, tmp_path, "near")
    assert store.path(model).samefile(tmp_path / "near.gguf")

    def other_file_system(*args: object, **options: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_file_system)
    model = added(store, tmp_path, "far", b"others")
    assert store.path(model).samefile(tmp_path / "far.gguf")
    assert store.remove("far") == 0
    assert (tmp_path / "far.gguf").exists()


def test_a_name_stands_for_one_file(store: ModelStore, tmp_path: Path) -> None:
    added(store, tmp_path, "one")
    with pytest.raises(ModelStoreError, match=r"the name one stands for another file.*roundhouse models rm one"):
        added(store, tmp_path, "one", b"other weights")


@pytest.mark.parametrize("name", ["../one", ".", "..", "", "a/b", "-x", "/etc"])
def test_a_name_cannot_lead_out_of_the_store(store: ModelStore, name: str) -> None:
    for act in (store.model, store.remove):
        with pytest.raises(ModelStoreError, match="is no name of a model"):
            act(name)


def test_a_path_is_known_by_its_model(store: ModelStore, tmp_path: Path) -> None:
    model = added(store, tmp_path, "one")
    assert store.holding(store.path(model)) == model
    assert store.holding(store.blob(model.sha256)) is None
    for other in (tmp_path / "one.gguf", Path("one.gguf"), tmp_path / ".hidden" / "one.gguf", Path("/")):
        assert store.holding(other) is None


def test_what_cannot_be_read_as_a_model_is_none(store: ModelStore, tmp_path: Path) -> None:
    added(store, tmp_path, "one")
    (store.folder / "models" / "one" / "model.json").write_text("{}")
    assert store.models() == [] and store.model("one") is None


def test_a_store_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelStoreError, match=r"cannot be written.*ROUNDHOUSE_MODELS_STORE"):
        added(ModelStore(tmp_path / "file"), tmp_path, "one")


def test_the_folder_follows_the_xdg_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_folder() == Path("/data/roundhouse/models")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_folder() == Path("/home/ada/.local/share/roundhouse/models")
