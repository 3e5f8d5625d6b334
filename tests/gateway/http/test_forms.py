"""Forms that arrive in pieces."""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ApiError, InvalidRequest
from gateway.http.forms import FileSink, Form

LIMITS = {"request": 100, "config": 1000, "weights": 4_000_000}


def encoded(parts: dict[str, bytes]) -> tuple[bytes, str]:
    """A form as httpx2 writes it."""
    request = httpx2.Request("POST", "http://a", files={name: ("f", content) for name, content in parts.items()})
    return request.read(), request.headers["content-type"]


async def read(content: bytes, content_type: str, cuts: list[int], folder: Path) -> tuple[Form, FileSink]:
    """Read a form into a folder; return it, and the sink of its weights."""
    sinks = {name: FileSink(folder / name) for name in ("config", "weights")}
    form = Form(content_type, sinks=sinks, limits=LIMITS)

    async def chunks() -> AsyncIterator[bytes]:
        places = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
        for begin, end in itertools.pairwise(places):
            yield content[begin:end]

    try:
        await form.read(chunks(), patience=5)
    finally:
        for sink in sinks.values():
            sink.close()
    return form, sinks["weights"]


@given(st.binary(max_size=300), st.binary(max_size=2000), st.lists(st.integers(min_value=0), max_size=20))
def test_files_are_what_was_sent_however_it_is_cut(config: bytes, weights: bytes, cuts: list[int]) -> None:
    """httpx2 writes the form; the digest is that of the files."""
    content, content_type = encoded({"request": b"{}", "config": config, "weights": weights})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        form, sink = anyio.run(read, content, content_type, cuts, folder)
        assert (folder / "config").read_bytes() == config
        assert (folder / "weights").read_bytes() == weights
        assert form.values["request"] == b"{}"
        assert hashlib.sha256(weights).hexdigest() == sink.digest
        assert form.filenames == {"request": "f", "config": "f", "weights": "f"}


def test_a_large_file_is_not_kept_in_memory(tmp_path: Path) -> None:
    """What is waiting to be written is about a megabyte at most."""
    weights = bytes(3_500_000)
    content, content_type = encoded({"request": b"{}", "config": b"", "weights": weights})
    form, _ = anyio.run(read, content, content_type, list(range(0, len(content), 65536)), tmp_path)
    assert (tmp_path / "weights").stat().st_size == len(weights)
    assert form.values["weights"] == b""


@given(st.binary(max_size=400), st.integers(min_value=0, max_value=400))
def test_a_broken_form_is_refused(noise: bytes, place: int) -> None:
    """Noise put anywhere, or the end cut off: never another error."""
    content, content_type = encoded({"request": b"{}", "config": b"abc", "weights": b"def"})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for broken in (content[:place] + noise + content[place:], content[: min(place, len(content) - 4)]):
            for file in folder.iterdir():
                file.unlink()
            try:
                anyio.run(read, broken, content_type, [], folder)
            except ApiError as error:
                assert error.status in (400, 413)
            else:
                assert broken != content[:place]


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=" + "x" * 80],
)
def test_a_boundary_is_needed(content_type: str) -> None:
    with pytest.raises(InvalidRequest):
        Form(content_type, sinks={}, limits={})
