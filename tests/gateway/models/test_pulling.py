"""Pulls: the right bytes or none, from whichever source has them, going on where an earlier pull stopped."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoint.manifest import read_manifest
from engine.checkpoint.verification import verify
from gateway.models import pulling
from gateway.models.catalogue import catalogue
from gateway.models.pulling import Unreachable, pull
from gateway.models.sources.source import SourceError, SourceInterrupted
from gateway.models.store import ModelStore, ModelStoreError
from gateway.models.targets import PullTarget, resolve
from tests.gateway.models.conftest import CHUNK, Recorder
from tests.gateway.models.servers import FileServer

OFFERED = catalogue()


class Memory:
    """A source that gives bytes from memory, breaks off after `left` of them, and remembers what was read."""

    scratch = 0

    def __init__(self, data: bytes, *, sha256: str | None = None, left: int | None = None) -> None:
        self.label, self.data, self.sha256, self.left = "memory", data, sha256, left
        self.size: int | None = len(data)
        self.identity = "memory"
        self.reads: list[tuple[int, int | None]] = []
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def read(self, start: int, end: int | None) -> Iterator[bytes]:
        self.reads.append((start, end))
        self.began.set()
        assert self.go_on.wait(60)
        for at in range(start, end or len(self.data), 1000):
            if self.left is not None and self.left < 1000:
                raise SourceInterrupted("memory: gone")
            piece = self.data[at : min(at + 1000, end or len(self.data))]
            self.left = None if self.left is None else self.left - len(piece)
            yield piece


def target(data: bytes, *sources: Memory | Exception) -> PullTarget:
    def opened(source: Memory | Exception) -> Memory:
        if isinstance(source, Exception):
            raise source
        return source

    openers = [lambda folder, fetched, source=source: opened(source) for source in sources]
    return PullTarget("tiny", "tiny.gguf", "tiny", hashlib.sha256(data).hexdigest(), len(data), "", openers)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(pulling.time, "sleep", found.append)
    return found


def test_a_model_that_was_pulled_is_named_verified_and_not_fetched_again(
    store: ModelStore, recorder: Recorder, data: bytes
) -> None:
    source = Memory(data)
    model = pull(store, target(data, source), recorder)
    assert store.path(model).read_bytes() == data and recorder.count == len(data)
    assert pull(store, target(data, source), recorder) == model
    assert source.reads == [(0, len(data))]
    assert [path for path in (store.folder / "partial").iterdir() if path.suffix != ".lock"] == []
    manifest = read_manifest(store.path(model))
    assert manifest is not None and manifest.chunk_bytes == CHUNK
    verify(store.path(model))


def test_a_digest_that_differs_is_refused_and_nothing_is_kept(
    store: ModelStore, recorder: Recorder, data: bytes
) -> None:
    with pytest.raises(ModelStoreError, match="gives a file with the sha256"):
        pull(store, target(data, Memory(data[::-1])), recorder)
    assert store.models() == []
    assert [path for path in store.folder.rglob("*") if path.is_file() and path.stat().st_size] == []


def test_what_a_source_promises_is_compared_before_anything_is_fetched(
    store: ModelStore, recorder: Recorder, data: bytes
) -> None:
    promised, longer = Memory(data, sha256="0" * 64), Memory(data + b"x")
    with pytest.raises(ModelStoreError, match=r"another file: sha256 0+.*another file: 20604 bytes, not 20603"):
        pull(store, target(data, promised, longer), recorder)
    assert promised.reads == longer.reads == []


def test_the_mirror_goes_on_where_the_origin_stopped(store: ModelStore, recorder: Recorder, data: bytes) -> None:
    origin, mirror = Memory(data, left=2 * CHUNK + 1000), Memory(data)
    pull(store, target(data, origin, mirror), recorder)
    assert mirror.reads == [(2 * CHUNK, len(data))]
    assert any("trying the mirror" in line for line in recorder.lines)


@pytest.mark.parametrize("failure", [SourceError("no such file"), SourceInterrupted("away")])
def test_an_origin_that_does_not_answer_leaves_it_to_the_mirror(
    store: ModelStore, recorder: Recorder, data: bytes, failure: Exception, pauses: list[float]
) -> None:
    pull(store, target(data, failure, Memory(data)), recorder)
    assert pauses == []


def test_sources_that_do_not_answer_are_told_from_those_that_refuse(
    store: ModelStore, recorder: Recorder, data: bytes
) -> None:
    away, refusing = SourceInterrupted("away"), SourceError("no such file")
    with pytest.raises(Unreachable, match="no such file; away"):
        pull(store, target(data, refusing, away), recorder)
    with pytest.raises(ModelStoreError, match="away; no such file") as refused:
        pull(store, target(data, away, refusing), recorder)
    assert not isinstance(refused.value, Unreachable)


def test_a_mirror_with_wrong_bytes_does_not_keep_the_right_ones_away(
    store: ModelStore, recorder: Recorder, data: bytes
) -> None:
    wrong = data[:CHUNK] + bytes(CHUNK) + data[2 * CHUNK :]
    model = pull(store, target(data, Memory(wrong), Memory(data)), recorder)
    assert store.path(model).read_bytes() == data


def test_interruptions_that_bring_nothing_end_and_the_next_pull_goes_on(
    store: ModelStore, recorder: Recorder, data: bytes, pauses: list[float]
) -> None:
    source = Memory(data, left=3 * CHUNK)
    with pytest.raises(ModelStoreError, match="tiny cannot be pulled: memory: gone"):
        pull(store, target(data, source), recorder)
    assert len(pauses) == 3  # one attempt brought something, the next three nothing
    source.left, source.reads = None, []
    pull(store, target(data, source), recorder)
    [(start, _)] = source.reads
    assert 2 * CHUNK <= start <= 3 * CHUNK


def test_only_damaged_parts_are_fetched_again(store: ModelStore, recorder: Recorder, data: bytes) -> None:
    source = Memory(data)
    model = pull(store, target(data, source), recorder)
    path = store.path(model)
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(3 * CHUNK + 5)
        file.write(b"\0")
    source.reads = []
    assert pull(store, target(data, source), recorder) == model
    assert source.reads == [(3 * CHUNK, 4 * CHUNK)]
    assert store.path(model).read_bytes() == data
    assert any("damaged" in line for line in recorder.lines)


def test_two_pulls_at_once_fetch_once(store: ModelStore, data: bytes) -> None:
    source, recorders, models = Memory(data), [Recorder(), Recorder()], []
    source.go_on.clear()

    def work(recorder: Recorder) -> None:
        models.append(pull(store, target(data, source), recorder))

    first, second = (threading.Thread(target=work, args=(each,)) for each in recorders)
    first.start()
    assert source.began.wait(60)
    second.start()
    while recorders[1].lines != ["waiting for another pull of it"]:
        assert second.is_alive()
    source.go_on.set()
    first.join()
    second.join()
    assert models[0] == models[1] and len(source.reads) == 1


def test_a_disk_without_room_is_refused_before_anything_is_fetched(
    store: ModelStore, recorder: Recorder, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "free", lambda: (64 << 20) + len(data) - 1)
    source = Memory(data)
    with pytest.raises(ModelStoreError, match=r"needs 67,129,467 bytes more.*67,129,466 are free; make room"):
        pull(store, target(data, source), recorder)
    assert source.reads == []
    monkeypatch.setattr(store, "free", lambda: (64 << 20) + len(data))
    pull(store, target(data, source), recorder)


def test_a_web_address_is_pulled_by_its_digest_and_without_one(
    store: ModelStore, recorder: Recorder, data: bytes, server: FileServer
) -> None:
    server.files["/models/My%20Model.Q4.gguf"] = data
    url = f"{server.url}/models/My%20Model.Q4.gguf"
    server.cuts = [2 * CHUNK + 7]
    model = pull(store, resolve(url, OFFERED, name=None, sha256=None, allow_private=False), recorder)
    assert model.file == "My-20Model.Q4.gguf" and model.name == "my-20model.q4"
    assert store.path(model).read_bytes() == data
    assert server.read == [("/models/My%20Model.Q4.gguf", start, len(data)) for start in (0, 2 * CHUNK)]
    with pytest.raises(ModelStoreError, match="not 0000"):
        pull(store, resolve(url, OFFERED, name="other", sha256="0" * 64, allow_private=False), recorder)


def test_a_web_address_that_was_pulled_stands_for_what_it_was(
    store: ModelStore, recorder: Recorder, data: bytes, server: FileServer
) -> None:
    server.files["/tiny.gguf"] = data
    wanted = resolve(f"{server.url}/tiny.gguf", OFFERED, name=None, sha256=None, allow_private=False)
    model = pull(store, wanted, recorder)
    server.files["/tiny.gguf"] = data[::-1]
    assert pull(store, wanted, recorder) == model
    store.remove(model.name)
    assert pull(store, wanted, recorder).sha256 == hashlib.sha256(data[::-1]).hexdigest()


def test_a_file_that_may_have_changed_is_fetched_anew(
    store: ModelStore, recorder: Recorder, data: bytes, server: FileServer
) -> None:
    server.files["/tiny.gguf"] = data
    server.ranges = server.sized = False
    model = pull(
        store, resolve(f"{server.url}/tiny.gguf", OFFERED, name=None, sha256=None, allow_private=False), recorder
    )
    assert model.bytes == len(data) and store.path(model).read_bytes() == data


def test_a_file_of_this_machine_is_used_where_it_lies(
    store: ModelStore, recorder: Recorder, data: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "Mine.gguf"
    file.write_bytes(data)
    wanted = resolve(str(file), OFFERED, name=None, sha256=None, allow_private=False)
    model = pull(store, wanted, recorder)
    assert model.name == "mine" and store.path(model).samefile(file)
    file.write_bytes(data[::-1])
    with pytest.raises(ModelStoreError, match=r"has the sha256 .* it is refused"):
        pull(store, dataclasses.replace(wanted, sha256=model.sha256), recorder)


@pytest.mark.parametrize("text", ["nothing", "hf:acme", "hf:acme/tiny", "hf:/x/y", "file:///etc/passwd"])
def test_what_cannot_be_pulled_is_explained(text: str) -> None:
    with pytest.raises(ModelStoreError, match="hf:OWNER/REPOSITORY"):
        resolve(text, OFFERED, name=None, sha256=None, allow_private=False)


def test_another_digest_than_the_catalogue_s_is_refused() -> None:
    with pytest.raises(ModelStoreError, match="the catalogue's smollm2-135m has the sha256 b179c9"):
        resolve("smollm2-135m", OFFERED, name=None, sha256="0" * 64, allow_private=False)
