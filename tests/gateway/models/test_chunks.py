"""A file in chunks: whatever is there, exactly the rest is fetched, and the digest is that of the whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.models.chunks import ChunkedFile, sidecar
from tests.gateway.models.conftest import CHUNK


class Origin:
    """Gives ranges of the data, remembers them, and may break off."""

    def __init__(self, data: bytes, breaks_after: int | None = None) -> None:
        self.data = data
        self.ranges: list[tuple[int, int | None]] = []
        self.left = breaks_after

    def __call__(self, start: int, end: int | None) -> Iterator[bytes]:
        self.ranges.append((start, end))
        for at in range(start, len(self.data) if end is None else end, 1000):
            piece = self.data[at : min(at + 1000, len(self.data) if end is None else end)]
            if self.left is not None:
                self.left -= len(piece)
                if self.left < 0:
                    raise ConnectionResetError
            yield piece


def filled(path: Path, data: bytes) -> None:
    with ChunkedFile(path, len(data)) as file:
        file.fill(Origin(data))


@given(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_only_what_is_missing_or_damaged_is_fetched(
    tmp_path_factory: pytest.TempPathFactory, missing: set[int], damaged: set[int]
) -> None:
    data = bytes(range(256)) * ((5 * CHUNK + 256) // 256)
    path = tmp_path_factory.mktemp("chunks") / "file"
    filled(path, data)
    with path.open("r+b") as file, sidecar(path).open("r+b") as digests:
        for index in missing | damaged:
            file.seek(index * CHUNK)
            file.write(b"\xff\x00\xff")
        for index in missing:
            digests.seek(index * 32)
            digests.write(bytes(32))
    origin = Origin(data)
    with ChunkedFile(path, len(data)) as chunked:
        assert {start // CHUNK for start, _ in chunked.damaged()} == damaged - missing
        assert chunked.present() == len(data) - sum(min(CHUNK, len(data) - each * CHUNK) for each in missing)
        assert chunked.fill(origin) == hashlib.sha256(data).hexdigest()
    assert path.read_bytes() == data
    fetched = {at // CHUNK for start, end in origin.ranges for at in range(start, end or 0, CHUNK)}
    assert fetched == missing | damaged


@pytest.mark.parametrize("after", [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 5, 5 * CHUNK])
def test_an_interrupted_fetch_goes_on_behind_the_last_whole_chunk(tmp_path: Path, data: bytes, after: int) -> None:
    with ChunkedFile(tmp_path / "file", len(data)) as file, pytest.raises(ConnectionResetError):
        file.fill(Origin(data, breaks_after=after))
    origin = Origin(data)
    with ChunkedFile(tmp_path / "file", len(data)) as file:
        assert file.present() <= after
        assert file.fill(origin) == hashlib.sha256(data).hexdigest()
    [(start, end)] = origin.ranges
    assert end == len(data) and after - 1000 - CHUNK < start <= after and start % CHUNK == 0


def test_a_file_of_unknown_size_ends_where_the_source_does(tmp_path: Path, data: bytes) -> None:
    with ChunkedFile(tmp_path / "file", None) as file:
        assert file.fill(Origin(data)) == hashlib.sha256(data).hexdigest()
        assert file.size == len(data)
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("change", [-1, -CHUNK, 1, CHUNK])
def test_a_source_with_more_or_fewer_bytes_is_an_error(tmp_path: Path, data: bytes, change: int) -> None:
    given = (data + bytes(CHUNK))[: len(data) + change]
    with ChunkedFile(tmp_path / "file", len(data)) as file, pytest.raises(EOFError):
        file.fill(lambda start, end: [given[start:]])


def test_bytes_behind_the_end_of_the_file_are_cut_off(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(bytes(len(data) + 1000))
    filled(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == data
