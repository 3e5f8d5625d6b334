"""Decides which web pages may talk to this server, so that pages of other sites cannot use a visitor's access."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Hosts by which a machine reaches only itself."""


def origin_allowed(origin: str | None, host: str | None, allowed: Sequence[str] = ()) -> bool:
    """Whether a request with these `Origin` and `Host` headers may pass.

    Programs send no Origin and pass: what identifies them is their API key. A browser always sends one; it must be the
    server's own or listed (`*` lists all). `null`, the origin of sandboxed pages and files, is never the server's own.
    """
    if origin is None or origin in allowed or "*" in allowed:
        return True
    parts = urlsplit(origin)
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == (host or "").lower()


def host_allowed(host: str | None, listen: str) -> bool:
    """Whether a `Host` header may reach a server that listens on this address.

    A server on the loopback interface must be addressed as such: a page of a site whose name has been pointed to
    127.0.0.1 (DNS rebinding) carries that name in Host, and would otherwise pass for the server's own.
    """
    if listen not in LOOPBACK or host is None:
        return True
    return urlsplit(f"//{host}").hostname in LOOPBACK
