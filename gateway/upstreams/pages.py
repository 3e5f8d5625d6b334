"""Opens connections to a server, and reads the pages on which it tells of itself: whether it is healthy, what it
serves, and its load."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx2
import msgspec
from msgspec import Struct

from engine.tls import Certificate, client_context
from gateway.upstreams.dialect import ServerDialect
from gateway.upstreams.load import read_metrics

_MAX_BODY = 64 * 1024
_MAX_PAGE = 1024 * 1024
"""Most bytes that are read of an answer, and of a page."""
_BUSY = (429, 529)
"""Statuses of a server that is there: it limits how often it is asked, or is full."""
_CONNECT = 10.0
"""Seconds until a connection for a command is there."""
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What is raised for a text that is not what it should be."""


class Unhealthy(Exception):
    """The server takes no requests, or does not speak its dialect."""


class ServerAccess(Struct, frozen=True):
    """How a server is reached."""

    key: Callable[[], str | None]
    """Reads the key that it wants, at each connection; it never reaches a log."""
    tls: Certificate | None = None
    """Who we are and whom to trust; None: the machine's authorities."""
    server_name: str | None = None
    """Name that its certificate is for; None: the host of the address."""


class ServerPages:
    """The pages of one server."""

    def __init__(self, http: httpx2.AsyncClient, dialect: ServerDialect, extensions: Mapping[str, Any]) -> None:
        """Args: extensions: of every request, see httpx2."""
        self.http = http
        self.drops = False
        """Whether the server closes the connection after a streamed answer without saying so, as llama.cpp's does."""
        self._dialect = dialect
        self._extensions = dict(extensions)

    async def check(self) -> None:
        """
        Raises:
            Unhealthy: the server says that it takes no requests, other than for the moment.
            httpx2.HTTPError: it says nothing.
        """
        await self._get(self._dialect.health, busy=True)

    async def about(self) -> list[bytes]:
        """Return the pages on which the server describes itself.

        Raises:
            Unhealthy, httpx2.HTTPError: as `check`.
        """
        return [await self.page(path) for path in self._dialect.about]

    async def metrics(self) -> dict[str, int]:
        """Return what the server's metrics count; nothing if it has none: it serves without them as well.

        Raises:
            httpx2.HTTPError: as `check`.
        """
        if self._dialect.metrics:
            with contextlib.suppress(Unhealthy, *UNREADABLE):
                return read_metrics((await self.page("/metrics")).decode(), self._dialect.metrics)
        return {}

    @property
    def tells_requests(self) -> bool:
        """Whether it may have a page that tells of each request."""
        return self._dialect.slots is not None

    async def seeds(self) -> list[int] | None:
        """Return the seeds of the requests that the server runs; None if it does not tell.

        Raises:
            httpx2.HTTPError: as `check`.
        """
        if self._dialect.slots is not None:
            with contextlib.suppress(Unhealthy, *UNREADABLE):
                return self._dialect.seeds(await self.page(self._dialect.slots))
        return None

    async def tell(self, path: str, body: Any) -> tuple[int, Mapping[str, str], bytes]:
        """Send a command; return its status, headers and answer.

        Raises:
            Unhealthy, httpx2.HTTPError: as `check`; it takes as long as it takes.
        """
        async with self.http.stream(
            "POST",
            path,
            content=msgspec.json.encode(body),
            headers={"content-type": "application/json"},
            extensions=self._extensions,
            timeout=httpx2.Timeout(None, connect=_CONNECT),
        ) as response:
            return response.status_code, response.headers, await read_body(response)

    async def page(self, path: str) -> bytes:
        """Return a page.

        Raises:
            Unhealthy: it answers with another status than 200, or with too much.
            httpx2.HTTPError: it does not answer.
        """
        return await self._get(path)

    async def _get(self, path: str, *, busy: bool = False) -> bytes:
        """Args: busy: whether a server may say that it takes no more of these just now."""
        async with self.http.stream("GET", path, extensions=self._extensions) as response:
            self.drops = "llama.cpp" in response.headers.get("server", "")
            if response.status_code != 200 and not (busy and response.status_code in _BUSY):
                raise Unhealthy(f"{path} answers {response.status_code}")
            return await read_body(response, _MAX_PAGE)


def opened(address: str, access: ServerAccess, dialect: ServerDialect, patience: float) -> httpx2.AsyncClient:
    """Return what asks a server until it is lost: keys and certificates may have been renewed since the last time.

    Args:
        patience: seconds that it may take to answer with a page.

    Raises:
        SettingsError, ValueError: a file cannot be used.
    """
    key = access.key()
    return httpx2.AsyncClient(
        base_url=address,
        headers={**dialect.headers, **({} if key is None else dialect.authorization(key))},
        verify=_trusted(address, access),
        # Shorter than servers keep them: a request on a connection that is just being closed would be lost.
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=2.0),
        timeout=patience,
        # Where requests go is the configuration's to say: not a server's, nor the environment's.
        follow_redirects=False,
        trust_env=False,
    )


def _trusted(address: str, access: ServerAccess) -> ssl.SSLContext:
    """Return whom to trust. Without TLS that is nobody: the machine's authorities take long to read."""
    if access.tls is not None:
        return client_context(access.tls)
    return ssl.create_default_context() if address.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def read_body(response: httpx2.Response, most: int = _MAX_BODY) -> bytes:
    """
    Raises:
        Unhealthy: the body is larger than that.
    """
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > most:
            raise Unhealthy(f"{response.url.path} answers with more than {most} bytes")
    return bytes(body)
