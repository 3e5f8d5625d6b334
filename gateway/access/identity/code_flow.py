"""Signs people in at an identity provider: OpenID Connect's authorization code flow with PKCE, run by the gateway.

The browser is sent to the provider and comes back with a code; the gateway exchanges it for an ID token and verifies
that as it does any token of the issuer. Between the two, what was begun lies sealed in a cookie of the browser: only
the browser that began a sign-in can end it, at whichever gateway. No token reaches the browser.

OpenID Connect Core 1.0 (section 3.1), RFC 7636 (PKCE, S256), RFC 9207 (`iss` in the answer).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx2
import jwt
import msgspec
from msgspec import Struct

from gateway.access.identity.issuers import Discovery, Issuers, Provider
from gateway.access.identity.tokens import Claims
from gateway.config.identity import IssuerSettings
from gateway.errors import NotFound, SignInFailed, Unauthorized, Unavailable
from gateway.records.section import SettingsError
from gateway.storage.seal import BrokenSeal, Seal

log = logging.getLogger("roundhouse.identity")

LIFETIME: Final = 600
"""Seconds that a sign-in may take."""
CALLBACK: Final = "/auth/callback"
"""Path to which providers send browsers back."""

_CONTEXT: Final = "sign-in"
_ERROR_CODE = re.compile(r"[a-z_]{1,64}")


class SignInProvider(Struct, frozen=True):
    """A provider at which people can sign in."""

    name: str
    title: str
    """Name for people."""
    address: str
    """Path of this server that leads there."""


class _Begun(Struct, frozen=True):
    """A sign-in between the two visits of the browser."""

    issuer: str
    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    back: str
    until: float


class _Tokens(Struct, frozen=True):
    """The provider's answer to a code, as far as it is used."""

    id_token: str = ""
    error: str = ""


_decode = msgspec.msgpack.Decoder(_Begun).decode
_decode_tokens = msgspec.json.Decoder(_Tokens).decode


class CodeFlow:
    """Begins and ends sign-ins with providers."""

    def __init__(self, issuers: Issuers, seal: Seal, *, clock: Callable[[], float] = time.time) -> None:
        self._providers = {each.settings.name: each for each in issuers.providers if each.settings.client_id}
        self._seal = seal
        self._clock = clock

    @property
    def providers(self) -> list[SignInProvider]:
        """Where people can sign in."""
        return [
            SignInProvider(name, each.settings.title or name, f"/auth/sign-in/{name}")
            for name, each in self._providers.items()
        ]

    async def begin(self, name: str, origin: str, back: str) -> tuple[str, str]:
        """Return the provider's address to send the browser to, and what the browser has to keep.

        Args:
            origin: of this server, as the browser sees it.
            back: path of this server to go to afterwards; empty: as suits whoever has signed in.

        Raises:
            NotFound: nobody can sign in there.
            Unavailable: the provider has not said yet how.
        """
        provider = self._providers.get(name)
        if provider is None:
            raise NotFound(f"no identity provider is named {name[:64]!r}")
        settings, discovery = provider.settings, await _discovery(provider)
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        begun = _Begun(name, state, nonce, verifier, origin + CALLBACK, back, self._clock() + LIFETIME)
        parameters = {
            "response_type": "code",
            "client_id": settings.client_id,
            "redirect_uri": begun.redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *settings.sign_in_scopes))),
            "state": state,
            "nonce": nonce,
            "code_challenge": _base64url(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        endpoint = discovery.authorization_endpoint
        separator = "&" if urlsplit(endpoint).query else "?"
        return endpoint + separator + urlencode(parameters), _base64url(
            self._seal.seal(msgspec.msgpack.encode(begun), _CONTEXT)
        )

    async def finish(self, answer: Mapping[str, str], kept: str | None) -> tuple[Claims, str]:
        """Return who has signed in, and the path to go to.

        Args:
            answer: what the provider has sent with the browser.
            kept: what the browser has kept.

        Raises:
            SignInFailed, Unauthorized: nobody has signed in; the message says why.
            Unavailable: the provider does not answer.
        """
        begun = self._opened(kept)
        if not hmac.compare_digest(answer.get("state", "").encode(), begun.state.encode()):
            raise SignInFailed("The answer belongs to another sign-in, perhaps in another tab. Sign in again.")
        provider = self._providers.get(begun.issuer)
        if provider is None:
            raise SignInFailed("This identity provider is not configured any more. Sign in another way.")
        settings, discovery = provider.settings, await _discovery(provider)
        sender = answer.get("iss")
        if sender != settings.issuer and (sender or discovery.authorization_response_iss_parameter_supported):
            raise SignInFailed("The answer comes from another identity provider. Sign in again.")
        if "code" not in answer:
            raise SignInFailed(f"The identity provider has refused{_quoted(answer.get('error', ''))}. Sign in again.")
        token = await _exchange(provider, discovery, answer["code"], begun)
        claims = await provider.verify(token, msgspec.structs.replace(settings, audience=[settings.client_id]))
        _check_ours(token, settings, begun.nonce)
        return claims, begun.back

    def _opened(self, kept: str | None) -> _Begun:
        try:
            begun = _decode(self._seal.open(base64.urlsafe_b64decode((kept or "") + "=="), _CONTEXT))
            if begun.until > self._clock():
                return begun
        except (BrokenSeal, ValueError, msgspec.MsgspecError):
            pass
        raise SignInFailed(
            "This sign-in was begun in another browser, or more than ten minutes ago. Sign in again; the browser must "
            "accept cookies of this server."
        )


async def _discovery(provider: Provider) -> Discovery:
    if provider.discovery is None:
        await provider.newer()
    if provider.discovery is None:
        raise Unavailable("The identity provider cannot be reached at the moment. Try again in a few seconds.")
    return provider.discovery


async def _exchange(provider: Provider, discovery: Discovery, code: str, begun: _Begun) -> str:
    """Return the ID token for a code.

    Raises:
        SignInFailed: the provider gives none.
        Unavailable: it does not answer.
    """
    settings = provider.settings
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": begun.redirect_uri,
        "code_verifier": begun.verifier,
    }
    options: dict[str, Any] = {}
    try:
        secret = settings.client_secret
        if secret is not None and "client_secret_basic" in discovery.token_endpoint_auth_methods_supported:
            # RFC 6749, section 2.3.1: both are encoded as in a form first.
            options["auth"] = (quote_plus(settings.client_id or ""), quote_plus(secret))
        else:
            form |= {"client_id": settings.client_id or "", **({} if secret is None else {"client_secret": secret})}
        status, body = await provider.post(discovery.token_endpoint, form, **options)
    except SettingsError as error:
        log.error("nobody can sign in", extra={"issuer": settings.name, "error": str(error)})
        raise Unavailable("The gateway cannot read its secret for this identity provider; tell its operator.") from None
    except (httpx2.HTTPError, OSError, ValueError) as error:
        log.warning("no answer to a code", extra={"issuer": settings.name, "error": f"{type(error).__name__}: {error}"})
        raise Unavailable("The identity provider does not answer at the moment. Sign in again.") from None
    try:
        tokens = _decode_tokens(body)
    except msgspec.MsgspecError:
        tokens = _Tokens()
    if status != 200 or not tokens.id_token:
        log.warning("a code was refused", extra={"issuer": settings.name, "status": status, "error": tokens.error[:64]})
        raise SignInFailed(
            f"The identity provider gives no token for this sign-in{_quoted(tokens.error)}. Sign in again; if that "
            "does not help, tell the operator of this server."
        )
    return tokens.id_token


def _check_ours(token: str, settings: IssuerSettings, nonce: str) -> None:
    """Check what a verified ID token says beside what any token says (OpenID Connect Core 1.0, section 3.1.3.7).

    Raises:
        Unauthorized: it was made for another sign-in, or another client.
    """
    claims = jwt.decode(token, options={"verify_signature": False})
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
        raise Unauthorized("the token was made for another sign-in (nonce)")
    if claims.get("azp", settings.client_id) != settings.client_id:
        raise Unauthorized("the token was made for another client (azp)")


def _quoted(code: str) -> str:
    """A provider's error code for a sentence; anything else that stands in its place is left out."""
    return f" ({code})" if _ERROR_CODE.fullmatch(code) else ""


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
