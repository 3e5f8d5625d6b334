"""Digests of checkpoints: read once, read again after any change, and those that `sha256sum` gives."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from engine.checkpoint import digests
from engine.checkpoint.digests import check_digest, checkpoint_digest, file_digest
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.manifest import describe, write_manifest


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found: list[Path] = []
    read = digests.read_digest

    def counted(path: Path) -> str:
        found.append(path)
        return read(path)

    monkeypatch.setattr(digests, "read_digest", counted)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights" * 1000)
    return path


def test_a_file_is_read_once(file: Path, reads: list[Path]) -> None:
    assert file_digest(file) == file_digest(file) == hashlib.sha256(b"weights" * 1000).hexdigest()
    assert reads == [file]


def test_a_file_that_was_changed_and_given_its_old_time_back_is_read_again(file: Path, reads: list[Path]) -> None:
    old, before = file_digest(file), file.stat()
    file.write_bytes(b"weighty" * 1000)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns and file.stat().st_size == before.st_size
    assert file_digest(file) != old
    assert len(reads) == 2


def test_a_file_in_the_place_of_another_is_read(file: Path, reads: list[Path]) -> None:
    file_digest(file)
    other = file.with_name("other")
    other.write_bytes(b"weighty" * 1000)
    other.replace(file)
    assert file_digest(file) == hashlib.sha256(b"weighty" * 1000).hexdigest()


def test_a_file_that_changes_while_it_is_read_is_not_remembered(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = digests.read_digest

    def changed(path: Path) -> str:
        digest = read(path)
        path.write_bytes(b"others")
        return digest

    monkeypatch.setattr(digests, "read_digest", changed)
    file_digest(file)
    assert digests.remembered(file) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\x00", b'{"size":1}'])
def test_a_memory_that_cannot_be_read_is_no_memory(file: Path, memory: Path, content: bytes, reads: list[Path]) -> None:
    file_digest(file)
    [entry] = (memory / "roundhouse" / "digests").iterdir()
    entry.write_bytes(content)
    file_digest(file)
    assert len(reads) == 2


def test_without_a_place_to_remember_every_start_reads(file: Path, memory: Path, reads: list[Path]) -> None:
    memory.write_text("no folder")
    assert file_digest(file) == file_digest(file)
    assert len(reads) == 2


def test_a_folder_has_the_digest_that_the_shell_gives(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "more").mkdir(parents=True)
    for name in ("config.json", "Z.safetensors", "a b.txt", "é.json", ".hidden"):
        (folder / name).write_text(name)
    command = "LC_ALL=C; export LC_ALL; sha256sum * 2> /dev/null | sha256sum"
    said = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert checkpoint_digest(folder) == said.split()[0]


def test_a_split_model_has_the_digest_of_all_its_files(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"m-{number:05}-of-00003.gguf").write_bytes(bytes([number]))
    first = tmp_path / "m-00001-of-00003.gguf"
    command = "LC_ALL=C sh -c 'sha256sum m-*-of-00003.gguf | sha256sum'"
    said = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert checkpoint_digest(first) == said.split()[0]
    (tmp_path / "m-00003-of-00003.gguf").write_bytes(b"other")
    assert checkpoint_digest(first) != said.split()[0]
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(OSError, match="m-00002-of-00003"):
        checkpoint_digest(first)


def test_another_digest_is_an_error_that_gives_both(file: Path) -> None:
    found = file_digest(file)
    check_digest(file, found)
    with pytest.raises(CheckpointError, match=f"has the sha256 {found}, not {'0' * 64}"):
        check_digest(file, "0" * 64)


def test_the_digest_of_the_manifest_stands_for_the_checkpoint(file: Path) -> None:
    """Where somebody compares the checkpoint with it."""
    listing = write_manifest(file, describe(file))
    check_digest(file, file_digest(listing))
    with pytest.raises(CheckpointError, match="has the sha256"):
        check_digest(file, file_digest(listing), manifest=False)
    check_digest(file, file_digest(file))
    listing.write_bytes(listing.read_bytes() + b"\n")
    with pytest.raises(CheckpointError, match="has the sha256"):
        check_digest(file, hashlib.sha256(listing.read_bytes()[:-1]).hexdigest())


def test_all_bytes_are_read_where_that_is_asked_for(file: Path, reads: list[Path]) -> None:
    found = file_digest(file)
    check_digest(file, found, read=True)
    assert len(reads) == 2
