"""Manifests: what they list, that one changed byte is found and named, and that a hostile one costs an error."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.checkpoint import manifest as module
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.manifest import Chunk, describe, manifest_path, read_manifest, write_manifest
from engine.checkpoint.verification import Verification, verify

CHUNK = 4096
SIZES = {
    "config.json": 100,
    "model-00001-of-00002.safetensors": 3 * CHUNK,
    "model-00002-of-00002.safetensors": 2 * CHUNK + 1,
    "tokenizer.json": CHUNK + 7,
    "chat_templates/tool_use.jinja": 50,
}

in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", CHUNK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with its manifest, and beside its files some that no engine reads."""
    path = tmp_path / "model"
    (path / "chat_templates").mkdir(parents=True)
    (path / "original").mkdir()
    random = Random(1)
    for name, size in {**SIZES, "README.md": 30, ".cached.json": 30, "original/params.json": 30}.items():
        (path / name).write_bytes(random.randbytes(size))
    write_manifest(path, describe(path))
    return path


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest as JSON."""
    file = manifest_path(folder)
    content = json.loads(file.read_bytes())
    change(content)
    file.write_text(json.dumps(content))


def flip(file: Path, at: int, mask: int = 1) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= mask
    file.write_bytes(content)


def test_it_lists_what_an_engine_reads_with_the_digests_that_b2sum_gives(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest is not None
    assert {name: digests.size for name, digests in manifest.files.items()} == SIZES
    for name, digests in manifest.files.items():
        said = [
            subprocess.run(
                f"tail -c +{begin + 1} '{folder / name}' | head -c {CHUNK} | b2sum -l 256",
                shell=True,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()[0]
            for begin in range(0, digests.size, CHUNK)
        ]
        assert digests.chunks == said


def test_a_checkpoint_that_is_what_it_was_passes_and_so_does_one_without_a_manifest(folder: Path) -> None:
    verify(folder)
    manifest_path(folder).unlink()
    flip(folder / "config.json", 0)
    assert read_manifest(folder) is None
    verify(folder)


@in_one_folder
@given(name=st.sampled_from(sorted(SIZES)), place=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_one_changed_byte_is_refused_with_its_file_and_chunk(folder: Path, name: str, place: float, mask: int) -> None:
    at = int(place * SIZES[name])
    flip(folder / name, at, mask)
    try:
        with pytest.raises(CheckpointError) as refused:
            verify(folder)
    finally:
        flip(folder / name, at, mask)
    begin = at // CHUNK * CHUNK
    end = min(begin + CHUNK, SIZES[name])
    assert f"{folder / name} is damaged or exchanged: bytes {begin:,} to {end - 1:,} are not" in str(refused.value)
    assert f"roundhouse models digest --replace {folder}" in str(refused.value)


def test_a_gguf_file_has_its_manifest_beside_it_and_a_split_one_has_one_for_all_parts(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(part.name.encode() * 1000)
    file = write_manifest(parts[0], describe(parts[0]))
    assert file == tmp_path / "m-00001-of-00002.gguf.manifest.json"
    verify(parts[0])
    flip(parts[1], 5)
    with pytest.raises(CheckpointError, match=f"{parts[1].name} is damaged"):
        verify(parts[0])
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=f"has no file '{parts[1].name}'"):
        verify(parts[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no file 'config.json', which the manifest lists"),
        (lambda folder: (folder / "more.safetensors").touch(), "has a file 'more.safetensors', which the manifest"),
        (lambda folder: (folder / "chat_template.jinja").touch(), "has a file 'chat_template.jinja'"),
        (lambda folder: (folder / "config.json").write_bytes(b"{}"), "config.json has 2 bytes where the manifest says"),
    ],
)
def test_a_manifest_of_another_folder_is_refused(folder: Path, change: Callable[[Path], object], said: str) -> None:
    change(folder)
    with pytest.raises(CheckpointError, match=said):
        Verification([folder])


def test_a_file_that_is_cut_off_while_it_is_read_has_another_digest(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(100))
    whole = Chunk(file, 0, 200).digest()
    file.write_bytes(bytes(200))
    assert Chunk(file, 0, 200).digest() != whole


def test_damage_is_the_reason_that_is_given_when_loading_fails(folder: Path) -> None:
    with pytest.raises(ValueError, match="of its own"), Verification([folder]).explaining():
        raise ValueError("a reason of its own")
    flip(folder / "tokenizer.json", 0)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is damaged"), Verification([folder]).explaining():
        raise ValueError("no tokenizer")
    with pytest.raises(KeyboardInterrupt), Verification([folder]).explaining():
        raise KeyboardInterrupt


def entry(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["files"]["config.json"].update(changes)


HOSTILE: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda content: content["files"].update({"../../etc/passwd": {"size": 1, "chunks": ["0" * 64]}}), "has no file"),
    (lambda content: content["files"].update({"/etc/passwd": {"size": 1, "chunks": ["0" * 64]}}), "has no file"),
    (lambda content: content["files"].update({"": {"size": 0, "chunks": []}}), "has no file ''"),
    (lambda content: content["files"].update({"x" * 100_000: {"size": 0, "chunks": []}}), "has no file 'x{200}'"),
    (lambda content: content.update(files={}), "does not list"),
    (lambda content: content.update(files=[]), "Expected `object`"),
    (lambda content: content.update(format=2), "Invalid enum value 2"),
    (lambda content: content.update(chunk_bytes=0), "Expected `int` >= 4096"),
    (lambda content: content.update(chunk_bytes=1 << 40), "Expected `int` <= 1073741824"),
    (lambda content: content.update(more=1), "unknown field `more`"),
    (entry(size=-1), "Expected `int` >= 0"),
    (entry(size=10**30), "Expected `int` <= 4611686018427387904"),
    (entry(size=int("9" * 4300)), "Expected `int`|out of range"),
    (entry(size=101), "config.json has 100 bytes where the manifest says 101"),
    (entry(chunks=["0" * 64] * 50_000), "config.json has 50,000 digests for 100 bytes"),
    (entry(chunks=[]), "config.json has 0 digests for 100 bytes"),
    (entry(chunks=["0" * 63]), "Expected `str` matching regex"),
    (entry(chunks=["G" * 64]), "Expected `str` matching regex"),
    (entry(chunks=[1]), "Expected `str`"),
]


@pytest.mark.parametrize(("change", "said"), HOSTILE)
def test_a_hostile_manifest_is_refused_at_once(
    folder: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    changed(folder, change)
    begun = time.process_time()
    with pytest.raises(CheckpointError, match=said) as refused:
        read_manifest(folder)
    assert time.process_time() - begun < 1
    assert len(str(refused.value)) < 1000 and str(manifest_path(folder)) in str(refused.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"format":1' + b" " * (1 << 20), b"null"]
)
def test_what_is_no_manifest_is_refused(folder: Path, content: bytes) -> None:
    manifest_path(folder).write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(str(manifest_path(folder)))):
        read_manifest(folder)


def test_a_manifest_that_fills_the_disk_is_not_read_to_its_end(folder: Path) -> None:
    with manifest_path(folder).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="has more than 67,108,864 bytes"):
        read_manifest(folder)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=20), inner, max_size=3),
    max_leaves=8,
)


@in_one_folder
@given(data=st.data())
def test_any_change_of_a_manifest_is_refused_or_says_the_same(folder: Path, data: st.DataObject) -> None:
    """Whatever stands in the place of one of its values."""
    original = manifest_path(folder).read_bytes()
    before = read_manifest(folder)
    content = json.loads(original)
    places: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            places.append((value, key))
            collect(value[key])

    collect(content)
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = data.draw(json_values)
    try:
        manifest_path(folder).write_text(json.dumps(content))
        verify(folder)
    except CheckpointError:
        pass
    else:
        assert msgspec.to_builtins(read_manifest(folder)) == msgspec.to_builtins(before)
    finally:
        manifest_path(folder).write_bytes(original)
