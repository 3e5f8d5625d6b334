"""Which addresses an adapter may be fetched from."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.adapter_sources import allowed, normalise
from gateway.errors import Forbidden, InvalidRequest

SOURCES = ["s3://models/adapters", "file:///srv/adapters/"]


@pytest.mark.parametrize(
    ("address", "normal"),
    [
        ("s3://models/adapters", "s3://models/adapters"),
        ("s3://models/adapters/pirate/", "s3://models/adapters/pirate"),
        ("s3://MODELS/adapters/a/b", "s3://models/adapters/a/b"),
        ("file:///srv/adapters/pirate", "file:///srv/adapters/pirate"),
    ],
)
def test_what_is_below_a_source_is_allowed(address: str, normal: str) -> None:
    assert allowed(address, SOURCES) == normal


@pytest.mark.parametrize(
    "address",
    [
        "s3://models/adapters-private/x",
        "s3://models",
        "s3://other/adapters/x",
        "gs://models/adapters/x",
        "file:///srv/adapters2",
        "file:///srv",
        "https://models/adapters/x",
    ],
)
def test_what_is_not_is_forbidden(address: str) -> None:
    with pytest.raises(Forbidden):
        allowed(address, SOURCES)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/srv/adapters/x",
        "s3:/models/adapters/x",
        "s3://models/adapters/../private",
        "s3://models/adapters/./x",
        "s3://models/adapters//x",
        "s3://models/adapters/%2e%2e/private",
        "s3://models/adapters/x?versionId=1",
        "s3://models/adapters/x#y",
        "s3://user:password@models/adapters/x",
        "s3://models/adapters/*",
        "s3://models/adapters/x\\..\\y",
        "s3://models/adapters/x\n",
        "simplecache::s3://models/adapters/x",
        "S3://models/adapters/x",
        "file://localhost/srv/adapters/x",
        "s3://models/adapters/" + "x" * 2000,
        "s3://mod els/adapters",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest):
        allowed(address, SOURCES)


@given(st.text(max_size=60) | st.text(alphabet="./%2ea:@\\", max_size=20))
def test_nothing_that_is_allowed_leaves_its_source(rest: str) -> None:
    """However it is read: unescaped, resolved, or split by the standard library."""
    for source in SOURCES:
        try:
            normal = allowed(source + rest, SOURCES)
        except (InvalidRequest, Forbidden):
            continue
        root = source.rstrip("/")
        assert normal == root or normal.startswith(root + "/")
        parts = urlsplit(normal)
        path = posixpath.normpath(unquote(parts.path))
        assert path == parts.path
        assert not parts.query
        assert not parts.fragment
        assert normalise(normal) == normal
