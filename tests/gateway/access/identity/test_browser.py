"""Which requests count as the signed-in person's own, and how cookies are named and set."""

from __future__ import annotations

from http.cookies import SimpleCookie
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from starlette.responses import Response

from gateway.access.identity import browser

LOCAL, PUBLIC = "127.0.0.1:8080", "chat.example.com"


def request(
    host: str = PUBLIC, method: str | None = "POST", cookie: str = "", scheme: str = "http", **headers: str
) -> HTTPConnection:
    """A request; a WebSocket's if there is no method."""
    given = {"host": host, "cookie": cookie, **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value]
    kind: dict[str, Any] = {"type": "websocket"} if method is None else {"type": "http", "method": method}
    return HTTPConnection({**kind, "headers": raw, "scheme": scheme})


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", None])
@pytest.mark.parametrize("site", ["", "none", "same-origin", "same-site", "cross-site"])
@pytest.mark.parametrize("origin", ["", "null", "own", "https://evil.example", "https://other.example.com"])
@pytest.mark.parametrize("host", [LOCAL, PUBLIC])
def test_a_cookie_counts_only_where_this_servers_pages_ask(
    host: str, origin: str, site: str, method: str | None
) -> None:
    reads = method in ("GET", "HEAD")
    own = f"{'http' if host == LOCAL else 'https'}://{host}" if origin == "own" else origin
    asked = request(host, method, origin=own, sec_fetch_site=site)
    allowed_site = site in ("", "same-origin") or (reads and site == "none")
    allowed_origin = origin == "own" or (reads and origin == "")
    assert browser.own_page(asked) == (allowed_site and allowed_origin)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (PUBLIC, "http://chat.example.com"),  # somebody between could have made that page
        (PUBLIC, "https://chat.example.com:444"),
        (PUBLIC, "https://chat.example.com.evil.example"),
        (PUBLIC, "https://evil.example?chat.example.com"),
        (LOCAL, "http://127.0.0.1:8081"),
        (LOCAL, "http://localhost:8080"),
        ("", "https://"),
        ("[::1", "https://[::1"),
    ],
)
def test_what_only_looks_like_the_own_origin(host: str, origin: str) -> None:
    assert not browser.own_page(request(host, origin=origin))


def test_hosts_are_compared_without_regard_to_case() -> None:
    assert browser.own_page(request("Chat.Example.com", origin="https://chat.example.com"))


@pytest.mark.parametrize(
    ("host", "name", "secure"),
    [
        (PUBLIC, "__Host-roundhouse-session", True),
        ("192.0.2.7:8080", "__Host-roundhouse-session", True),
        (LOCAL, "roundhouse-session-8080", False),
        ("localhost", "roundhouse-session-80", False),
        ("[::1]:9000", "roundhouse-session-9000", False),
        ("127.0.0.1:x", "roundhouse-session-80", False),
    ],
)
def test_a_cookie_is_read_by_no_script_and_sent_encrypted(host: str, name: str, secure: bool) -> None:
    answer, asked = Response(), request(host)
    browser.set_cookie(answer, asked, "session", "value", 60)
    [(found, morsel)] = SimpleCookie(answer.headers["set-cookie"]).items()
    assert (found, morsel.value) == (name, "value")
    assert (morsel["httponly"], bool(morsel["secure"]), morsel["samesite"]) == (True, secure, "lax")
    assert (morsel["path"], morsel["domain"], morsel["max-age"]) == ("/", "", "60")
    assert browser.cookie(request(host, cookie=f"{name}=value"), "session") == "value"
    assert browser.cookie(request(host, cookie=f"{name}=value"), "sign-in") is None


def test_a_cookie_that_another_host_could_set_is_none() -> None:
    """Where the server has a name, one without the prefix."""
    assert browser.cookie(request(PUBLIC, cookie="roundhouse-session-80=value"), "session") is None


def test_a_deleted_cookie_ends_at_once() -> None:
    answer = Response()
    browser.delete_cookie(answer, request(), "session")
    [morsel] = SimpleCookie(answer.headers["set-cookie"]).values()
    assert (morsel.value, morsel["max-age"]) == ("", "0")


@pytest.mark.parametrize(
    ("host", "scheme", "origin"),
    [
        (PUBLIC, "http", "https://chat.example.com"),  # behind a proxy that is not trusted
        (PUBLIC, "https", "https://chat.example.com"),
        (LOCAL, "http", "http://127.0.0.1:8080"),
        (LOCAL, "https", "https://127.0.0.1:8080"),
    ],
)
def test_the_own_origin_is_what_the_browser_sees(host: str, scheme: str, origin: str) -> None:
    assert browser.origin(request(host, scheme=scheme)) == origin
