"""Files of web servers, by ranges.

Redirects are followed by hand: never to another scheme than http and https, never from https to http, and from a public
host never to a private one, so that no server on the internet makes this machine read addresses inside its network.
Names that only a proxy can resolve are the proxy's to judge.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import httpx2

from gateway.models.sources.source import SourceError, SourceInterrupted

_TIMEOUT = httpx2.Timeout(60, connect=10)
_MOST_REDIRECTS = 10
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses with which a server says that a later request may succeed."""


class WebFile:
    """One file of a web server, as its first answer described it."""

    scratch = 0

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        sha256: str | None = None,
        allow_private: bool = False,
    ) -> None:
        """
        Args:
            headers: sent to the host of `url`, and to no other one.
            allow_private: follow redirects from public hosts to private ones.

        Raises:
            SourceError: the address is none that can be fetched, or the server does not give the file.
            SourceInterrupted: the server does not answer.
        """
        self.label = url
        self.sha256 = sha256
        self._headers = {**headers, "accept-encoding": "identity"}
        self._allow_private = allow_private
        try:
            self._url = httpx2.URL(url)
        except httpx2.InvalidURL as error:
            raise SourceError(f"{url} is no address: {error}") from error
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise SourceError(f"{url}: only http:// and https:// addresses can be fetched")
        with self._opened(0, 1) as response:
            self.size = _size(response)
            self._validator = response.headers.get("etag") or response.headers.get("last-modified")

    @property
    def identity(self) -> str | None:
        if self.sha256 is not None:
            return self.sha256
        return f"{self._url} {self.size} {self._validator}" if self._validator and self.size is not None else None

    def read(self, start: int, end: int | None) -> Iterator[bytes]:
        with self._opened(start, end) as response:
            validator = response.headers.get("etag") or response.headers.get("last-modified")
            if _size(response) != self.size or validator != self._validator:
                raise SourceError(f"{self.label} changed while it was fetched; pull it again")
            skip = 0 if response.status_code == 206 else start
            left = None if end is None else end - start
            try:
                for piece in response.iter_raw():
                    piece, skip = piece[skip:], max(0, skip - len(piece))
                    piece = piece[:left]
                    if left is not None:
                        left -= len(piece)
                    yield piece
                    if left == 0:
                        return
            except httpx2.HTTPError as error:
                raise SourceInterrupted(f"{self.label}: the connection broke ({error})") from error

    @contextmanager
    def _opened(self, start: int, end: int | None) -> Iterator[httpx2.Response]:
        headers = {**self._headers, "range": f"bytes={start}-{'' if end is None else end - 1}"}
        with httpx2.Client(timeout=_TIMEOUT, follow_redirects=False) as client:
            try:
                response = self._answer(client, client.build_request("GET", self._url, headers=headers))
            except httpx2.HTTPError as error:
                reason = str(error) or type(error).__name__
                raise SourceInterrupted(f"{self.label} does not answer ({reason})") from error
            try:
                _check(self.label, response, start)
                yield response
            finally:
                response.close()

    def _answer(self, client: httpx2.Client, request: httpx2.Request) -> httpx2.Response:
        for _ in range(_MOST_REDIRECTS):
            response = client.send(request, stream=True)
            if response.next_request is None:
                return response
            response.close()
            request = self._redirected(request, response.next_request)
        raise SourceError(f"{self.label} redirects more than {_MOST_REDIRECTS} times")

    def _redirected(self, request: httpx2.Request, following: httpx2.Request) -> httpx2.Request:
        """Check where a redirect leads; httpx2 has taken the authorization out of a request to another host."""
        where = following.url
        if where.scheme not in ("http", "https") or (request.url.scheme, where.scheme) == ("https", "http"):
            raise SourceError(f"{self.label} redirects to {where.scheme}://{where.host}, which is not followed")
        if not self._allow_private and _private(where.host) and not _private(self._url.host):
            raise SourceError(
                f"{self.label} redirects to {where.host}, which is inside a private network; if that is meant, add "
                "--allow-private"
            )
        return following


def _check(label: str, response: httpx2.Response, start: int) -> None:
    status = response.status_code
    if status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("content-range", ""))
        if found is None or int(found[1]) != start:
            raise SourceError(f"{label} gives another range than it was asked for")
    elif status in _PASSING:
        raise SourceInterrupted(f"{label} answers {status}")
    elif status in (401, 403):
        raise SourceError(f"{label} answers {status}: it needs a login or a licence that you accept there first")
    elif status != 200:
        raise SourceError(f"{label} answers {status}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise SourceError(f"{label} is sent in {response.headers['content-encoding']} encoding, without ranges")


def _size(response: httpx2.Response) -> int | None:
    """Return the size of the whole file, if the server says it."""
    if response.status_code == 206:
        total = response.headers["content-range"].rpartition("/")[2]
    else:
        total = response.headers.get("content-length", "")
    return int(total) if total.isascii() and total.isdigit() else None


def _private(host: str) -> bool:
    """Whether a host is inside a private network, or this machine itself."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return any(not ipaddress.ip_address(address.partition("%")[0]).is_global for address in found)
