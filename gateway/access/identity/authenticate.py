"""Authenticates callers: by an API key of the directory or of the configuration file, a token of an identity provider,
or the session of a browser, which counts only where neither key nor token is sent.

What has been seen before is answered without I/O. A key is looked up by its digest: how long that takes says nothing
about a key, as nobody can steer what a key hashes to. Keys of the configuration are stored as plain SHA-256, because
the file is made without the installation's secret.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import msgspec
from starlette.requests import HTTPConnection

from gateway.access.directory.view import View
from gateway.access.identity import browser
from gateway.access.identity.browser_sessions import BrowserSessions, digest_of
from gateway.access.identity.guesses import Guesses
from gateway.access.identity.issuers import Issuers
from gateway.access.identity.last_used import LastUsed
from gateway.access.identity.principal import ADMIN, LINK, Principal
from gateway.access.identity.tokens import Claims, looks_like_token
from gateway.config.settings import Settings
from gateway.errors import Forbidden, RateLimited, Unauthorized
from gateway.records.api_keys import PREFIX, digest, well_formed
from gateway.records.directory import Key, Scope

MAX_CREDENTIAL = 8192
"""Longest key or token in characters."""

TOKENS = "token:"
"""Prefix of the name of a token's issuer, which takes the place of a key's id; ids of keys have no colon."""

_KEY_HEADERS = ("authorization", "x-api-key")
_T = TypeVar("_T")
_BEARER = re.compile(r"[Bb]earer +([\x21-\x7e]+)")


class Identity:
    """Authenticates callers."""

    def __init__(
        self,
        view: View,
        secret: bytes,
        guesses: Guesses,
        last_used: LastUsed,
        issuers: Issuers,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: clock: seconds since 1970, for what expires; steady: seconds of a clock that nobody sets."""
        self._view = view
        self._secret = secret
        self._guesses = guesses
        self._last_used = last_used
        self._issuers = issuers
        self._clock = clock
        self._steady = steady
        self.sessions: BrowserSessions | None = None
        """Sessions of signed-in browsers, which whoever has some sets; None: no cookie is believed."""

    def configure(self, settings: Settings) -> None:
        """Use the limits of a new configuration; its keys are in the view."""
        self._guesses.configure(settings.server.failed_keys_per_minute)

    async def authenticate(self, connection: HTTPConnection) -> Principal:
        """Return the principal of a request's `Authorization` header or, without one, of its `x-api-key`; without
        either, of the session that its cookie names.

        Raises:
            Unauthorized: neither header nor cookie, not a bearer token, or a key, token or session that is wrong,
                expired or disabled.
            Forbidden: the tenant is disabled or does not exist, or a page of another origin sends the cookie.
            RateLimited: its address has tried too many wrong ones, or too many addresses have.
            Unavailable: it was not seen before and cannot be looked up at the moment.
        """
        if (session := self._session(connection)) is not None:
            return await self._signed_in(session)
        credential = _credential(connection.headers)
        if (principal := await self._known(credential)) is not None:
            return principal
        return await self.slowed(connection, lambda: self._unknown(credential))

    async def slowed(self, connection: HTTPConnection, check: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of `check`, unless the client's address has failed too often; its failures count.

        Raises:
            RateLimited: the address has to wait.
            ApiError: as `check` does.
        """
        address = connection.client.host if connection.client else ""
        now = self._steady()
        if wait := self._guesses.wait(address, now):
            raise RateLimited(
                "too many wrong API keys or tickets came from your address; wait, and correct the key",
                retry_after=wait,
                code="too_many_failures",
            )
        try:
            return await check()
        except Unauthorized:
            self._guesses.failed(address, now)
            raise

    def ignores_unknown(self, principal: Principal) -> bool:
        """Whether parameters that no request has are to be ignored in this caller's requests."""
        tenant = self._view.tenant(principal.tenant)
        return tenant is not None and tenant.unknown_parameters == "ignore"

    async def renew(self, principal: Principal) -> Principal:
        """Return the same principal as it is now, for a connection that lives long.

        Raises:
            Unauthorized: its key or session has expired, or was disabled or deleted.
            Forbidden: its tenant is disabled or was deleted.
            Unavailable: the key has changed and cannot be looked up at the moment.
        """
        if principal.session is not None:
            return await self._signed_in(principal.session)
        if principal.expires_at is not None:
            if principal.expires_at <= self._clock():
                raise Unauthorized("the token of this connection has expired; connect with a new one")
            return await self._user_checked(principal)
        key = await self._view.key_named(principal.key)
        if key is None or key.tenant != principal.tenant:
            raise Unauthorized("the API key of this connection was deleted; connect with another one")
        return await self._principal(key)

    def watching(self, principal: Principal, close: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `close` once the session of this principal has ended, while the body runs; never without a session."""
        if principal.session is None or self.sessions is None:
            return nullcontext()
        return self.sessions.watching(principal.session, close)

    def _session(self, connection: HTTPConnection) -> str | None:
        """Return the digest of the session of a request that sends neither key nor token.

        Raises:
            Forbidden: a page of another origin sends the cookie.
        """
        if self.sessions is None or any(connection.headers.get(name) for name in _KEY_HEADERS):
            return None
        id = browser.cookie(connection, "session")
        if id is None:
            return None
        if not browser.own_page(connection):
            raise Forbidden(
                "a signed-in browser may call from this server's own pages only; other programs send an API key",
                code="origin_not_allowed",
            )
        return digest_of(id)

    async def _signed_in(self, session: str) -> Principal:
        """Return who has signed in, as far as the configuration and the directory still allow it.

        Raises:
            ApiError: as `authenticate` does.
        """
        assert self.sessions is not None
        principal = await self.sessions.find(session)
        if principal.key == LINK:
            return self._local_operator(principal)
        issuer = self._issuers.named(principal.key.removeprefix(TOKENS))
        if issuer is None:
            raise Unauthorized("the identity provider of this session is not trusted any more", code="session_ended")
        subject = (principal.user or "").removeprefix(issuer.subject_prefix)
        operator = principal.operator and subject in issuer.operators
        return await self._user_checked(msgspec.structs.replace(principal, operator=operator))

    def _local_operator(self, principal: Principal) -> Principal:
        """Return an operator who has signed in by a one-time address, as far as its tenant is there: without one, or
        with a disabled one, it administers and does not chat."""
        tenant = self._view.tenant(principal.tenant)
        if tenant is not None and not tenant.disabled:
            return principal
        return msgspec.structs.replace(principal, tenant="", scopes=ADMIN)

    async def _known(self, credential: str) -> Principal | None:
        """Return the principal of a credential that cannot be guessed and was seen before. An address that is slowed
        may still use it."""
        if looks_like_token(credential):
            claims = self._issuers.known(credential)
            return await self.of_token(claims) if claims is not None else None
        if not credential.startswith(PREFIX):
            return None
        key = self._view.known_key(digest(credential, self._secret))
        return await self._principal(key) if key is not None else None

    async def _unknown(self, credential: str) -> Principal:
        if looks_like_token(credential):
            return await self.of_token(await self._issuers.verify(credential))
        # Keys of the configuration may have any form.
        key = self._view.known_key(hashlib.sha256(credential.encode()).hexdigest())
        if key is None and well_formed(credential):
            key = await self._view.key(digest(credential, self._secret))
        if key is None:
            raise Unauthorized("incorrect API key; check that it is whole, or ask for a new one")
        return await self._principal(key)

    async def _principal(self, key: Key) -> Principal:
        """
        Raises:
            ApiError: as `authenticate` does.
        """
        if key.disabled:
            raise Unauthorized("this API key is disabled")
        if key.expires_at is not None and key.expires_at <= self._clock():
            raise Unauthorized("this API key has expired; use the one that replaces it")
        await self._check_tenant(key.tenant)
        scopes: frozenset[Scope] = frozenset(key.scopes)
        if key.user is not None:
            user = await self._view.user_named(key.user)
            if user is None or user.disabled:
                raise Unauthorized("the user of this API key is disabled")
            if user.scopes is not None:
                scopes &= frozenset(user.scopes)
        self._last_used.touch(key.tenant, key.id)
        return Principal(key.tenant, key.id, key.user, scopes, key.operator, key.quota, key.counts_as, user_id=key.user)

    async def of_token(self, claims: Claims) -> Principal:
        """Return the principal of a verified token.

        Raises:
            ApiError: as `authenticate` does.
        """
        return await self._user_checked(
            Principal(
                claims.tenant,
                f"{TOKENS}{claims.issuer}",
                claims.subject,
                claims.scopes,
                claims.operator,
                expires_at=claims.expires_at,
            )
        )

    async def _user_checked(self, principal: Principal) -> Principal:
        """Return a token's principal, if its tenant and user may call; people need not be in the directory."""
        await self._check_tenant(principal.tenant)
        user = await self._view.user(principal.tenant, principal.user or "")
        if user is None:
            return msgspec.structs.replace(principal, user_id=None)
        if user.disabled:
            raise Unauthorized("the user of this token is disabled")
        scopes = principal.scopes if user.scopes is None else principal.scopes & frozenset(user.scopes)
        return msgspec.structs.replace(principal, scopes=scopes, user_id=user.id)

    async def _check_tenant(self, name: str) -> None:
        tenant = self._view.tenant(name)
        if tenant is None:
            # It may be as new as its key, and the view has not seen it yet.
            await self._view.refresh()
            tenant = self._view.tenant(name)
        if tenant is None or tenant.disabled:
            raise Forbidden("the tenant of this key or token is disabled or does not exist", code="tenant_disabled")


def _credential(headers: Mapping[str, str]) -> str:
    """
    Raises:
        Unauthorized: no bearer token is in the headers.
    """
    authorization = headers.get("authorization")
    if not authorization and (key := headers.get("x-api-key")):
        authorization = f"Bearer {key}"
    if not authorization:
        raise Unauthorized("no API key; send the header 'Authorization: Bearer <key>'", code="missing_api_key")
    match = _BEARER.fullmatch(authorization)
    if not match or len(match[1]) > MAX_CREDENTIAL:
        raise Unauthorized(
            f"the Authorization header must read 'Bearer <key>', with a key or token of at most {MAX_CREDENTIAL} "
            "characters"
        )
    return match[1]
