"""Verifies tokens of identity providers. No I/O but a look at the clock.

RFC 7519 (JWT), RFC 7517 (JWK) and the advice of RFC 8725: algorithms come from the configuration, never from the token;
a key is used only with the algorithms of its type, so that nobody can pass a public key off as a shared secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK

from gateway.access.identity.principal import SCOPES
from gateway.config.identity import Algorithm, IssuerSettings
from gateway.errors import Unauthorized
from gateway.records.directory import Scope

MAX_KEYS: Final = 100
"""Most keys of one provider; those of today have two or three."""
_MIN_RSA_BITS: Final = 2048
_MAX_RSA_BITS: Final = 8192
_LATEST: Final = 253_402_300_799
"""The end of the year 9999, in seconds since 1970."""
_MAX_SUBJECT: Final = 255
"""Longest `sub` in characters (OpenID Connect Core, section 2)."""

KeySet = Mapping[tuple[str | None, Algorithm], PyJWK]
"""Keys by `kid` and algorithm; under `kid` None stands the only key of an algorithm, if there is one."""


class Claims(msgspec.Struct, frozen=True):
    """Claims of a verified token."""

    issuer: str
    """Name of the issuer in the configuration."""
    subject: str
    tenant: str
    scopes: frozenset[Scope]
    operator: bool
    expires_at: float
    """Time at which the token expires, in seconds since 1970, leeway included."""


class UnknownKey(Exception):
    """The token was signed with a key that is not in the set; a newer set may have it."""


def looks_like_token(credential: str) -> bool:
    """Whether this is a JSON Web Token, rather than an API key: three parts, of which the first is JSON."""
    return credential.startswith("ey") and credential.count(".") == 2


def key_set(document: bytes, algorithms: Sequence[Algorithm]) -> KeySet:
    """Return the keys of a JWKS that can verify signatures of these algorithms.

    Raises:
        ValueError: this is no JWKS, or has no such key.
    """
    listed = msgspec.json.decode(document, type=dict[str, Any]).get("keys")
    if not isinstance(listed, list) or len(listed) > MAX_KEYS:
        raise ValueError(f"the JWKS must have a list 'keys' of at most {MAX_KEYS}")
    keys: dict[tuple[str | None, Algorithm], PyJWK] = {}
    nameless: dict[Algorithm, list[PyJWK]] = {}
    for entry in listed:
        for algorithm in algorithms:
            key = _key(entry, algorithm)
            if key is not None:
                nameless.setdefault(algorithm, []).append(key)
                if isinstance(key.key_id, str):
                    keys.setdefault((key.key_id, algorithm), key)
    for algorithm, found in nameless.items():
        if len(found) == 1:
            keys[None, algorithm] = found[0]
    if not keys:
        raise ValueError(f"the JWKS has no key for {', '.join(algorithms)}")
    return keys


def issuer_of(token: str) -> str:
    """Return the issuer that a token names; nothing of it is verified.

    Raises:
        Unauthorized: it cannot be read.
    """
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Unauthorized("the token cannot be read: it is no JSON Web Token") from None
    issuer = claims.get("iss")
    if not isinstance(issuer, str):
        raise Unauthorized("the token has no issuer (iss)")
    return issuer


def verify(token: str, issuer: IssuerSettings, keys: KeySet) -> Claims:
    """Return the claims of a token, if it is this issuer's, for us, and valid now.

    Raises:
        Unauthorized: it is not; the message says what is wrong.
        UnknownKey: its key is not in the set.
    """
    try:
        header = jwt.get_unverified_header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in issuer.algorithms:
            raise Unauthorized(f"the token's algorithm is not accepted; use {', '.join(issuer.algorithms)}")
        key = keys.get((kid, cast(Algorithm, algorithm)))
        if key is None:
            raise UnknownKey
        claims = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=issuer.audience,
            issuer=issuer.issuer,
            leeway=issuer.leeway,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
    except jwt.PyJWTError as error:
        raise Unauthorized(f"the token is not valid: {_reason(error)}") from None
    except (ValueError, TypeError, RecursionError):
        raise Unauthorized("the token cannot be read") from None
    subject, most = claims["sub"], _MAX_SUBJECT - len(issuer.subject_prefix)
    if not 0 < len(subject) <= most or not subject.isprintable():
        raise Unauthorized(f"the token's subject (sub) must have 1 to {most} printable characters")
    return Claims(
        issuer=issuer.name,
        subject=issuer.subject_prefix + subject,
        tenant=_tenant(claims, issuer),
        scopes=_scopes(claims, issuer),
        operator=subject in issuer.operators,
        expires_at=min(int(claims["exp"]), _LATEST) + issuer.leeway,
    )


def _key(entry: object, algorithm: Algorithm) -> PyJWK | None:
    """Return a key of a JWKS, for one algorithm; None if it is not meant or not fit for it."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm:
        return None
    operations = entry.get("key_ops", ["verify"])
    if "d" in entry or not isinstance(operations, list) or "verify" not in operations:
        return None
    kinds = {"RS": ("RSA", None), "PS": ("RSA", None), "Ed": ("OKP", "Ed25519")}
    curves = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
    kind, curve = kinds.get(algorithm[:2]) or ("EC", curves[algorithm])
    if entry.get("kty") != kind or (curve is not None and entry.get("crv") != curve):
        return None
    try:
        key = PyJWK(entry, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    # A huge key would make each check slow; a small one can be factored.
    if isinstance(key.key, RSAPublicKey) and not _MIN_RSA_BITS <= key.key.key_size <= _MAX_RSA_BITS:
        return None
    return key


def _reason(error: jwt.PyJWTError) -> str:
    """Return the reason of an error, without anything of the token's."""
    match error:
        case jwt.ExpiredSignatureError():
            return "it has expired"
        case jwt.ImmatureSignatureError():
            return "it is not valid yet (nbf, iat)"
        case jwt.InvalidAudienceError():
            return "it is for another audience (aud)"
        case jwt.InvalidIssuerError():
            return "it is another issuer's (iss)"
        case jwt.MissingRequiredClaimError():
            return f"it has no '{error.claim}'"
        case jwt.InvalidSignatureError():
            return "its signature is wrong"
        case _:
            return "it is malformed"


def _tenant(claims: Mapping[str, Any], issuer: IssuerSettings) -> str:
    if issuer.tenant is not None:
        return issuer.tenant
    value = claims.get(issuer.tenant_claim or "")
    tenant = issuer.tenants.get(value) if issuer.tenants and isinstance(value, str) else value
    if not isinstance(tenant, str) or not tenant:
        raise Unauthorized(f"the token's claim '{issuer.tenant_claim}' names no tenant of this server")
    return tenant


def _scopes(claims: Mapping[str, Any], issuer: IssuerSettings) -> frozenset[Scope]:
    value = claims.get(issuer.scopes_claim)
    named = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    prefix = issuer.scope_prefix
    ours = {each.removeprefix(prefix) for each in named if isinstance(each, str) and each.startswith(prefix)}
    return frozenset(scope for scope in SCOPES if scope in ours) or frozenset(issuer.default_scopes)
