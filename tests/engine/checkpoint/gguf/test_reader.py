"""Whatever is in a file: it is read, or refused with the one error of checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from struct import pack

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.gguf.reader import GgufFile
from engine.checkpoint.opening import open_checkpoint
from tests.amounts import examples
from tests.engine.checkpoint.gguf.miniature import write_gguf
from tests.engine.conftest import Checkpoint

MANY = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
U8, U32, FLOAT, STRING, ARRAY = 0, 4, 6, 8, 9


def text(value: bytes) -> bytes:
    return pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + pack("<I", kind) + value


def tensor(
    name: bytes = b"t", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0, dimensions: int | None = None
) -> bytes:
    count = len(shape) if dimensions is None else dimensions
    return text(name) + pack("<I", count) + b"".join(pack("<Q", each) for each in shape) + pack("<IQ", kind, offset)


def file(
    *parts: bytes, keys: int = 0, tensors: int = 0, magic: bytes = b"GGUF", version: int = 3, data: int = 1024
) -> bytes:
    header = magic + pack("<IQQ", version, tensors, keys) + b"".join(parts)
    return header + bytes(-len(header) % 32) + bytes(data)


SOUND = file(key(b"a", U32, pack("<I", 7)), tensor(b"t", (32, 2), 8), keys=1, tensors=1)
HOSTILE: list[tuple[bytes, str]] = [
    (b"", "the file is empty"),
    (b"GG", "ends inside its header"),
    (file(magic=b"GGML"), "does not begin with 'GGUF'"),
    (file(version=1), "version is 1; 2 and 3"),
    (file(version=3 << 24), "version is 50331648"),
    (file(keys=2**40), "promises 1099511627776 keys"),
    (file(tensors=2**63), "tensors, for which it has no room"),
    (file(text(b"k")[:4], keys=0, tensors=1, data=0), "tensors, for which it has no room"),
    (file(pack("<Q", 2**63), keys=1), "a key has 9223372036854775808 bytes"),
    (file(key(b"a", STRING, pack("<Q", 2**62)), keys=1), "a has 4611686018427387904 bytes"),
    (file(key(b"a", U8, b"1"), key(b"a", U8, b"1"), keys=2), "'a' is there twice"),
    (file(key(b"\xff", U8, b"1"), keys=1), "a key is not UTF-8"),
    (file(key(b"a", STRING, text(b"\xff")), keys=1), "a is not UTF-8"),
    (file(key(b"a", 99, b"1"), keys=1), "unknown type 99"),
    (file(key(b"a", FLOAT, pack("<f", float("inf"))), keys=1), "a is inf"),
    (file(key(b"a", ARRAY, pack("<IQ", ARRAY, 1)), keys=1), "only numbers and strings can be in one"),
    (file(key(b"a", ARRAY, pack("<IQ", U32, 2**62)), keys=1), "promises 4611686018427387904 numbers of a"),
    (file(key(b"a", ARRAY, pack("<IQ", STRING, 2**40)), keys=1), "strings of a, for which it has no room"),
    (file(key(b"a", ARRAY, pack("<IQQ", STRING, 1, 2**62)), keys=1), "a has a string of 4611686018427387904 bytes"),
    (file(key(b"a", ARRAY, pack("<IQQ", STRING, 3, 1) + b"x" * 20), keys=1, data=0), "a has a string|ends inside a"),
    (file(tensor(b"x" * 64), tensors=1), "tensor's name has 64 bytes"),
    (file(tensor(shape=(), dimensions=0), tensors=1), "has 0 dimensions"),
    (file(tensor(shape=(1,) * 5), tensors=1), "has 5 dimensions"),
    (file(tensor(shape=(32, 0)), tensors=1), "no dimension can be 0"),
    (file(tensor(shape=(2**63, 2**63)), tensors=1), "ends at byte"),
    (file(tensor(shape=(2**32, 2**32)), tensors=1), "ends at byte"),
    (file(tensor(kind=16), tensors=1), "has the type IQ2_XXS, which is not supported; these are: F32, F16, Q4_0"),
    (file(tensor(kind=4), tensors=1), "has the type number 4"),
    (file(tensor(shape=(33,), kind=8), tensors=1), "no multiple of the 32 that a block of Q8_0 has"),
    (file(tensor(offset=4), tensors=1), "begins at 4, which is no multiple of 32"),
    (file(tensor(offset=2**63), tensors=1), "ends at byte"),
    (file(tensor(b"a"), tensor(b"a", offset=128), tensors=2), "'a' is there twice"),
    (file(tensor(b"a"), tensor(b"b", offset=96), tensors=2), "'b' begins before the end of 'a'"),
    (file(tensor(b"a", offset=128), tensor(b"b"), tensors=2), "'b' begins before the end of 'a'"),
    (file(tensor(shape=(32, 32)), tensors=1), "ends at byte 4192 of a file with 1120"),
    (file(key(b"general.alignment", U32, pack("<I", 0)), keys=1), "general.alignment is 0"),
    (file(key(b"general.alignment", U32, pack("<I", 48)), keys=1), "general.alignment is 48"),
    (file(key(b"general.alignment", U32, pack("<I", 1 << 31)), keys=1), "general.alignment is 2147483648"),
]


def read(path: Path, content: bytes) -> GgufFile:
    path.write_bytes(content)
    return GgufFile(path)


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    found = read(tmp_path / "a.gguf", SOUND)
    assert found.metadata == {"a": 7}
    place = found.tensors["t"]
    assert (place.type.name, place.shape, found.data(place).shape) == ("q8_0", (2, 32), (2, 34))


@pytest.mark.parametrize(("content", "message"), HOSTILE, ids=[message for _, message in HOSTILE])
def test_what_contradicts_itself_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path / "a.gguf", content)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.gguf: No such file"):
        open_checkpoint(tmp_path / "none.gguf")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint) -> bytes:
    kind = gguf.GGMLQuantizationType.Q8_0
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    return write_gguf(path, checkpoint("llama"), type_of=lambda name: kind if "v.w" in name else kind.F32).read_bytes()


def use(path: Path, content: bytes) -> None:
    """Read all that is read of a file."""
    path.write_bytes(content)
    with contextlib.suppress(CheckpointError):
        found = open_checkpoint(path)
        for reading in READINGS:
            with contextlib.suppress(CheckpointError):
                reading(found)


READINGS: list[Callable[..., object]] = [
    lambda found: found.config,
    lambda found: found.tokenizer(),
    lambda found: list(found.tensors()),
    lambda found: (found.templates, found.special_tokens, found.revision),
]


@MANY
@given(data=st.data())
def test_flipped_and_cut_bytes(data: st.DataObject, tmp_path: Path, whole: bytes) -> None:
    changed = bytearray(whole)
    header = whole.index(b"blk.2.") + 2000
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    use(tmp_path / "a.gguf", bytes(changed[: data.draw(st.sampled_from([len(whole), len(whole) - 1, header, 7]))]))


@MANY
@given(at=st.integers(0, 3000), number=st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
def test_sizes_that_overflow(at: int, number: int, tmp_path: Path, whole: bytes) -> None:
    use(tmp_path / "a.gguf", whole[:at] + pack("<Q", number) + whole[at + 8 :])
