"""Where the server is."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

Made = TypeVar("Made", bound=asyncio.Protocol)


class Address(msgspec.Struct, frozen=True):
    """The base of a server's API."""

    host: str
    port: int
    secure: bool
    path: str
    """Path of the API without a slash at its end, such as `/v1`."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Return the address of a URL such as `http://127.0.0.1:8080`, whose API is at `/v1` if it names no path.

        Raises:
            ValueError: it is no http or https URL.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        known = parts.scheme in ("http", "https") and parts.hostname
        if not known or parts.username or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is no address of a server: write http://host:port or https://host/v1")
        assert parts.hostname
        secure = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if secure else 80), secure, parts.path.rstrip("/") or "/v1")

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.path}"

    async def connect(self, wire: Callable[[], Made]) -> Made:
        """Open a connection.

        Raises:
            OSError: there is no server, or its certificate is not trusted.
        """
        tls = _trusted() if self.secure else None
        _, made = await asyncio.get_running_loop().create_connection(wire, self.host, self.port, ssl=tls)
        return made


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The system's certificates; reading them takes longer than many turns."""
    return ssl.create_default_context()
