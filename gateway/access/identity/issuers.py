"""Identity providers: their keys, read and renewed in the background, and tokens that were verified a moment ago.

A request never waits for a provider, with one exception: a token whose key is not known yet, as happens when a
provider changes its keys. Then one read is shared by all who wait, and there is at most one in a while. A provider that
cannot be reached leaves its last good keys in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpx2
import msgspec

from gateway.access.identity.tokens import Claims, KeySet, UnknownKey, issuer_of, key_set, verify
from gateway.background import Kept
from gateway.config.identity import IssuerSettings, safe_url
from gateway.errors import Unauthorized, Unavailable

log = logging.getLogger("roundhouse.identity")

MOST_VERIFIED = 10_000
"""Most tokens that are remembered as verified."""
_VERIFIED_SECONDS = 300.0
"""Longest time in seconds for which a token is remembered as verified."""
_MAX_DOCUMENT = 262_144
"""Largest JWKS or discovery document in bytes."""
_TIMEOUT = 5.0
"""Seconds for reading keys, discovery included."""
_PAUSE = 10.0
"""Seconds between two reads because of unknown keys, and after a read that failed."""


class Discovery(msgspec.Struct, frozen=True):
    """What an identity provider says of itself (OpenID Connect Discovery 1.0, section 3), as far as it is used."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    token_endpoint_auth_methods_supported: list[str] = msgspec.field(default_factory=lambda: ["client_secret_basic"])
    authorization_response_iss_parameter_supported: bool = False


class Provider:
    """Reads and holds the keys of one issuer."""

    def __init__(self, settings: IssuerSettings, client: httpx2.AsyncClient, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.keys: KeySet | None = None
        self.discovery: Discovery | None = None
        """What it said of itself when its keys were read last, unless their address is configured and nobody signs in
        there."""
        self.generation = 0
        """Number that changes with the keys."""
        self._document = b""
        self._client = client
        self._clock = clock
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def newer(self) -> None:
        """Read the keys again, unless that was done a moment ago. Concurrent callers share one read."""
        if self._reading is None:
            if self._clock() - self._read_at < _PAUSE:
                return
            self._read_at = self._clock()
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._done)
        # A caller that goes away does not take the others' read with it.
        await asyncio.shield(self._reading)

    async def run(self) -> None:
        """Renew the keys until cancelled."""
        while True:
            await self.newer()
            await asyncio.sleep(self.settings.refresh if self.keys is not None else _PAUSE)

    async def verify(self, token: str, settings: IssuerSettings) -> Claims:
        """Verify a token and return its claims; its keys are read again if they do not have the token's.

        Args:
            settings: this issuer's, or with another audience.

        Raises:
            Unauthorized: it is not to be believed.
            Unavailable: the keys have not been read yet.
        """
        claims = self._verified(token, settings)
        if claims is None:
            await self.newer()
            claims = self._verified(token, settings)
        if claims is not None:
            return claims
        if self.keys is None:
            raise Unavailable(
                "the keys of the token's issuer cannot be read at the moment; try again in a few seconds",
                headers={"retry-after": "5"},
            )
        raise Unauthorized("the token was signed with a key that its issuer does not publish")

    async def post(self, url: str, form: dict[str, str], **options: Any) -> tuple[int, bytes]:
        """Post a form to the provider; returns status and body.

        Raises:
            httpx2.HTTPError, OSError, ValueError: there is no answer, or one that is too large.
        """
        async with asyncio.timeout(_TIMEOUT), self._client.stream("POST", url, data=form, **options) as response:
            return response.status_code, await _body(response, url)

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _verified(self, token: str, settings: IssuerSettings) -> Claims | None:
        """Return the claims of a token; None if its key is not among those that were read."""
        with contextlib.suppress(UnknownKey):
            if self.keys is not None:
                return verify(token, settings, self.keys)
        return None

    def _done(self, task: asyncio.Task[None]) -> None:
        self._reading = None

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                if self.settings.jwks_url is None or self.settings.client_id is not None:
                    self.discovery = await self._discover()
                address = self.settings.jwks_url or (self.discovery.jwks_uri if self.discovery else "")
                document = await self._get(address)
                keys = key_set(document, self.settings.algorithms)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, RecursionError) as error:
            log.warning(
                "keys of an identity provider cannot be read",
                extra={"issuer": self.settings.name, "error": f"{type(error).__name__}: {error}"[:300]},
            )
            return
        if document != self._document:
            self.generation += 1
        self.keys, self._document = keys, document

    async def _discover(self) -> Discovery:
        """Read what the provider says of itself (OpenID Connect Discovery 1.0, section 4)."""
        url = self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
        found = msgspec.json.decode(await self._get(url), type=Discovery)
        if found.issuer != self.settings.issuer:
            raise ValueError(f"{url} is about another issuer")
        signs_in = ("authorization_endpoint", "token_endpoint") if self.settings.client_id is not None else ()
        for field in ("jwks_uri", *signs_in):
            if not safe_url(getattr(found, field)):
                raise ValueError(f"{url}: {field} must be an https:// address")
        return found

    async def _get(self, url: str) -> bytes:
        async with self._client.stream("GET", url) as response:
            if response.status_code != 200:
                raise ValueError(f"{url} answered {response.status_code}")
            return await _body(response, url)


class Issuers:
    """All identity providers of the configuration."""

    def __init__(
        self,
        issuers: Sequence[IssuerSettings],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = httpx2.AsyncClient(timeout=_TIMEOUT, follow_redirects=False) if issuers else None
        self._wall = wall
        self._providers = {
            each.issuer: Provider(each, self._client, clock) for each in issuers if self._client is not None
        }
        self._verified: OrderedDict[bytes, tuple[Claims, Provider, int, float]] = OrderedDict()
        """Claims of verified tokens by digest, with provider and generation of the keys, and the time until which they
        hold."""
        self._reading = [Kept("identity provider", each.run) for each in self._providers.values()]

    async def start(self) -> None:
        """Start reading all keys in the background."""
        for reading in self._reading:
            await reading.start()

    async def aclose(self) -> None:
        """Stop reading."""
        for reading in self._reading:
            await reading.aclose()
        for provider in self._providers.values():
            await provider.aclose()
        if self._client is not None:
            await self._client.aclose()

    @property
    def providers(self) -> Iterable[Provider]:
        """All providers, as the configuration orders them."""
        return self._providers.values()

    def named(self, name: str) -> IssuerSettings | None:
        """Settings of the issuer with this name."""
        return next((each.settings for each in self.providers if each.settings.name == name), None)

    def known(self, token: str) -> Claims | None:
        """Return the claims of a token that was verified a moment ago and is still valid."""
        found = self._verified.get(_digest(token))
        if found is None:
            return None
        claims, provider, generation, until = found
        return claims if self._wall() < until and generation == provider.generation else None

    async def verify(self, token: str) -> Claims:
        """Verify a token and return its claims.

        Raises:
            Unauthorized: it is not to be believed.
            Unavailable: the keys of its issuer have not been read yet.
        """
        provider = self._providers.get(issuer_of(token))
        if provider is None:
            raise Unauthorized("the token's issuer (iss) is not one that this server trusts")
        claims = await provider.verify(token, provider.settings)
        until = min(claims.expires_at, self._wall() + _VERIFIED_SECONDS)
        digest = _digest(token)
        self._verified.pop(digest, None)
        self._verified[digest] = (claims, provider, provider.generation, until)
        if len(self._verified) > MOST_VERIFIED:
            self._verified.popitem(last=False)
        return claims


async def _body(response: httpx2.Response, url: str) -> bytes:
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MAX_DOCUMENT:
            raise ValueError(f"{url} has more than {_MAX_DOCUMENT} bytes")
    return body


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
