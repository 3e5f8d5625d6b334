"""Files of web servers: ranges, what servers do wrong, and redirects that are not followed."""

from __future__ import annotations

import socket

import pytest

from gateway.models.sources.source import SourceError, SourceInterrupted
from gateway.models.sources.web import WebFile
from tests.gateway.models.servers import FileServer


@pytest.fixture
def url(server: FileServer, data: bytes) -> str:
    server.files["/file.gguf"] = data
    return f"{server.url}/file.gguf"


def test_any_part_of_a_file_can_be_read(url: str, data: bytes) -> None:
    file = WebFile(url)
    assert file.size == len(data)
    assert b"".join(file.read(0, None)) == data
    assert b"".join(file.read(100, 5000)) == data[100:5000]


def test_a_server_without_ranges_is_read_from_the_start(url: str, data: bytes, server: FileServer) -> None:
    server.ranges = False
    file = WebFile(url)
    assert file.size == len(data)
    assert b"".join(file.read(100, 5000)) == data[100:5000]
    assert b"".join(file.read(5000, None)) == data[5000:]


def test_a_server_that_does_not_say_the_size_is_read_to_the_end(url: str, data: bytes, server: FileServer) -> None:
    server.ranges = server.sized = False
    file = WebFile(url)
    assert file.size is None and file.identity is None
    assert b"".join(file.read(0, None)) == data


def test_a_body_that_breaks_off_is_an_interruption(url: str, data: bytes, server: FileServer) -> None:
    file = WebFile(url)
    server.cuts = [1000]
    got = []
    with pytest.raises(SourceInterrupted, match="the connection broke"):
        got += list(file.read(0, None))
    assert b"".join(got) == data[: len(b"".join(got))]


def test_a_file_that_changes_is_refused(url: str, data: bytes, server: FileServer) -> None:
    file = WebFile(url)
    server.files["/file.gguf"] = data[::-1]
    with pytest.raises(SourceError, match="changed while it was fetched"):
        list(file.read(0, None))


def test_the_same_file_has_the_same_identity(url: str, data: bytes, server: FileServer) -> None:
    one, two = WebFile(url).identity, WebFile(url).identity
    server.files["/file.gguf"] = data[::-1]
    assert one == two != WebFile(url).identity
    server.etag = lambda data: None
    assert WebFile(url).identity is None
    assert WebFile(url, sha256="ab").identity == "ab"


@pytest.mark.parametrize(
    "status, kind, said",
    [
        (404, SourceError, "answers 404"),
        (403, SourceError, "it needs a login"),
        (503, SourceInterrupted, "answers 503"),
        (429, SourceInterrupted, "answers 429"),
    ],
)
def test_statuses_are_errors(url: str, server: FileServer, status: int, kind: type[SourceError], said: str) -> None:
    server.status = status
    with pytest.raises(kind, match=said) as found:
        WebFile(url)
    assert type(found.value) is kind


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.com/x", "http://", "https:///x", "http://[::1"])
def test_only_web_addresses_can_be_fetched(url: str) -> None:
    with pytest.raises(SourceError, match=r"only http|is no address"):
        WebFile(url)


def test_a_server_that_is_away_is_an_interruption() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(SourceInterrupted, match="does not answer"):
        WebFile(f"http://127.0.0.1:{port}/file")


def test_redirects_are_followed_and_take_no_secrets_along(url: str, data: bytes, server: FileServer) -> None:
    server.redirects["/moved"] = url.replace("127.0.0.1", "localhost")
    file = WebFile(f"{server.url}/moved", headers={"authorization": "Bearer secret"})
    assert b"".join(file.read(0, None)) == data
    assert server.authorizations == ["Bearer secret", None, "Bearer secret", None]


def test_redirects_end(server: FileServer) -> None:
    server.redirects["/round"] = "/round"
    with pytest.raises(SourceError, match="redirects more than"):
        WebFile(f"{server.url}/round")


@pytest.mark.parametrize("where", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_redirects_to_other_schemes_are_refused(server: FileServer, where: str) -> None:
    server.redirects["/out"] = where
    with pytest.raises(SourceError, match=r"is not followed|does not answer"):
        WebFile(f"{server.url}/out")


def test_a_public_host_redirects_to_a_private_one_only_if_that_is_allowed(
    server: FileServer, url: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The public host is this server under a name that resolves to a public address where addresses are judged."""
    resolve = socket.getaddrinfo

    def public(host: str, *more: object, **options: object) -> object:
        if host == "localhost" and more == (None,):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 0))]
        return resolve(host, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", public)
    server.redirects["/inside"] = url
    address = f"http://localhost:{server.server_port}/inside"
    with pytest.raises(
        SourceError, match=r"redirects to 127.0.0.1, which is inside a private network.*--allow-private"
    ):
        WebFile(address)
    assert b"".join(WebFile(address, allow_private=True).read(0, None)) == data
