"""Which requests of a browser count as the signed-in person's own, and the cookies that carry who that is. Pure.

Browsers add cookies to every request for a host, whichever page makes it. A cookie is therefore only believed where the
browser says that a page of this server asks, or for reading, that the person typed the address. Cookies of one host are
shared by all its ports: on this machine the port is part of a cookie's name, so that two installations do not overwrite
each other's. Elsewhere the prefix `__Host-` keeps other hosts of the same domain from setting one.
"""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import SplitResult, urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import Response

from gateway.config.origin import LOOPBACK

Cookie = Literal["session", "sign-in"]
"""The cookies of this server: of a session, and of a sign-in with a provider that has not ended yet."""

_READS: Final = ("GET", "HEAD")


def on_this_machine(connection: HTTPConnection) -> bool:
    """Whether the server is addressed by a name that leads to the browser's own machine."""
    return _host(connection).hostname in LOOPBACK


def origin(connection: HTTPConnection) -> str:
    """Origin of this server as the browser sees it: with HTTPS, but on the browser's own machine as it was asked."""
    scheme = connection.scope.get("scheme", "http") if on_this_machine(connection) else "https"
    return f"{scheme}://{_host(connection).netloc}"


def own_page(connection: HTTPConnection) -> bool:
    """Whether a page of this server makes the request; for reading also whether the person typed the address."""
    headers = connection.headers
    reads = connection.scope["type"] == "http" and connection.scope["method"] in _READS
    site, sender = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin") and not (reads and site == "none"):
        return False
    if sender is None:
        return reads  # browsers name the origin of everything else
    host, schemes = _host(connection).netloc, ("https", "http") if on_this_machine(connection) else ("https",)
    return bool(host) and sender in {f"{scheme}://{host}" for scheme in schemes}


def cookie(connection: HTTPConnection, which: Cookie) -> str | None:
    """Value of a cookie, if the request has it."""
    return connection.cookies.get(_name(connection, which)) or None


def set_cookie(response: Response, connection: HTTPConnection, which: Cookie, value: str, seconds: float) -> None:
    """Set a cookie that no script can read, for so many seconds."""
    response.set_cookie(
        _name(connection, which),
        value,
        max_age=round(seconds),
        path="/",
        secure=not on_this_machine(connection),
        httponly=True,
        samesite="lax",
    )


def delete_cookie(response: Response, connection: HTTPConnection, which: Cookie) -> None:
    """Have the browser forget a cookie."""
    set_cookie(response, connection, which, "", 0)


def _host(connection: HTTPConnection) -> SplitResult:
    try:
        return urlsplit(f"//{connection.headers.get('host', '').lower()}")
    except ValueError:
        return urlsplit("")


def _name(connection: HTTPConnection, which: Cookie) -> str:
    if on_this_machine(connection):
        port = _host(connection).netloc.rpartition(":")[2]
        return f"roundhouse-{which}-{port if port.isdecimal() else 80}"
    return f"__Host-roundhouse-{which}"
