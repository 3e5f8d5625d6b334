"""Tokens: what is believed and what is refused. PyJWT and cryptography make them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.identity.principal import USE
from gateway.access.identity.tokens import UnknownKey, issuer_of, key_set, looks_like_token, verify
from gateway.config.identity import IssuerSettings, check_issuers
from gateway.errors import Unauthorized
from gateway.records.section import SettingsError
from tests.gateway.access.identity.provider import AUDIENCE, ProviderServer, private_key, public_jwk, public_pem


@pytest.fixture(scope="module")
def provider() -> Iterator[ProviderServer]:
    with ProviderServer() as provider:
        yield provider


def issuer(provider: ProviderServer, **fields: Any) -> IssuerSettings:
    return IssuerSettings(**{"name": "idp", "issuer": provider.url, "audience": [AUDIENCE], "tenant": "acme", **fields})


def keys(*jwks: dict[str, Any], algorithms: Any = ("RS256", "ES256")) -> Any:
    return key_set(json.dumps({"keys": jwks}).encode(), algorithms)


ONE = public_jwk(private_key("RSA"), kid="one")


def test_a_valid_token_says_who_it_is(provider: ProviderServer) -> None:
    claims = verify(provider.token(), issuer(provider), keys(ONE))
    assert (claims.issuer, claims.subject, claims.tenant, claims.scopes) == ("idp", "ann", "acme", USE)
    assert not claims.operator
    assert claims.expires_at > time.time() + 600


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("RSA", "RS384"),
        ("RSA", "RS512"),
        ("RSA", "PS256"),
        ("RSA", "PS384"),
        ("RSA", "PS512"),
        ("P-256", "ES256"),
        ("P-384", "ES384"),
        ("P-521", "ES512"),
        ("Ed25519", "EdDSA"),
    ],
)
def test_every_algorithm_that_can_be_configured_works(provider: ProviderServer, kind: str, algorithm: Any) -> None:
    published = keys(public_jwk(private_key(kind), kid="one"), algorithms=[algorithm])
    assert verify(provider.token(kind, algorithm), issuer(provider, algorithms=[algorithm]), published).subject == "ann"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": "now-3600"}, "expired"),
        ({"nbf": "now+7200"}, "not valid yet"),
        ({"iat": "now+7200"}, "not valid yet"),
        ({"aud": "another"}, "audience"),
        ({"aud": ["another", "third"]}, "audience"),
        ({"aud": []}, "aud"),
        ({"aud": {}}, "aud"),
        ({"iss": "https://another.example"}, "issuer"),
        ({"exp": None}, "'exp'"),
        ({"aud": None}, "'aud'"),
        ({"iss": None}, "'iss'"),
        ({"sub": None}, "'sub'"),
        ({"sub": ""}, "sub"),
        ({"sub": "a\nb"}, "sub"),
        ({"sub": "x" * 256}, "sub"),
        ({"exp": "soon"}, "malformed"),
        ({"exp": 1e400}, "malformed"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_claim_that_is_wrong_is_named(provider: ProviderServer, changes: dict[str, Any], reason: str) -> None:
    now = int(time.time())
    at = {name: now + int(value[3:]) for name, value in changes.items() if str(value).startswith("now")}
    with pytest.raises(Unauthorized, match=reason):
        verify(provider.token(**{**changes, **at}), issuer(provider), keys(ONE))


def test_a_clock_may_differ_by_the_leeway(provider: ProviderServer) -> None:
    late = provider.token(exp=int(time.time()) - 60)
    with pytest.raises(Unauthorized, match="expired"):
        verify(late, issuer(provider, leeway=5), keys(ONE))
    assert verify(late, issuer(provider, leeway=200), keys(ONE)).subject == "ann"


def test_a_token_that_lives_for_ever_is_no_overflow(provider: ProviderServer) -> None:
    assert verify(provider.token(exp=10**400), issuer(provider), keys(ONE)).expires_at < 3e11


def _part(value: Any) -> bytes:
    return base64.urlsafe_b64encode(value if isinstance(value, bytes) else json.dumps(value).encode()).rstrip(b"=")


def test_no_signature_is_no_signature(provider: ProviderServer) -> None:
    """RFC 8725, section 3.2: `none` in any spelling, with and without a signature."""
    for algorithm in ("none", "None", "NONE", "nOnE", "", None, 1, ["RS256"]):
        for signature in (b"", b"x", provider.token().rsplit(".", 1)[1].encode()):
            head = _part({"alg": algorithm, "typ": "JWT", "kid": "one"})
            token = b".".join([head, _part(provider.claims()), signature]).decode()
            with pytest.raises(Unauthorized):
                verify(token, issuer(provider), keys(ONE))


def test_a_public_key_is_no_shared_secret(provider: ProviderServer) -> None:
    """The classic: HS256 keyed with the published RSA key, whichever way it is written."""
    head, body = _part({"alg": "HS256", "kid": "one"}), _part(provider.claims())
    for secret in (public_pem(private_key("RSA")), json.dumps(ONE).encode(), ONE["n"].encode()):
        signature = hmac.digest(secret, head + b"." + body, hashlib.sha256)
        with pytest.raises(Unauthorized, match="algorithm"):
            verify(b".".join([head, body, _part(signature)]).decode(), issuer(provider), keys(ONE))


def test_an_algorithm_that_is_not_configured_is_refused(provider: ProviderServer) -> None:
    published = keys(ONE, algorithms=["RS256", "RS512"])
    with pytest.raises(Unauthorized, match="RS256"):
        verify(provider.token(algorithm="RS512"), issuer(provider, algorithms=["RS256"]), published)


def test_another_key_of_the_same_name_is_refused(provider: ProviderServer) -> None:
    with pytest.raises(Unauthorized, match="signature"):
        verify(provider.token(name="attacker's"), issuer(provider), keys(ONE))


def test_a_key_in_the_token_itself_is_ignored(provider: ProviderServer) -> None:
    """`jwk` and `jku` in a header are the attacker's."""
    mine = private_key("RSA", "attacker's")
    headers = {"kid": "one", "jwk": public_jwk(mine), "jku": "https://evil.example/jwks"}
    token = jwt.encode(provider.claims(), mine, algorithm="RS256", headers=headers)
    with pytest.raises(Unauthorized, match="signature"):
        verify(token, issuer(provider), keys(ONE))


def test_a_key_that_is_not_published_may_be_in_a_newer_set(provider: ProviderServer) -> None:
    with pytest.raises(UnknownKey):
        verify(provider.token(kid="two"), issuer(provider), keys(ONE))


def test_without_a_name_the_only_key_is_meant(provider: ProviderServer) -> None:
    token = provider.token(kid=None)
    assert verify(token, issuer(provider), keys(ONE)).subject == "ann"
    with pytest.raises(UnknownKey):
        verify(token, issuer(provider), keys(ONE, public_jwk(private_key("RSA", "b"), kid="two")))


@pytest.mark.parametrize(
    "published",
    [
        {**ONE, "use": "enc"},
        {**ONE, "alg": "RS512"},
        {**ONE, "key_ops": ["encrypt"]},
        {**ONE, "key_ops": "verify"},
        {**ONE, "d": "AQAB"},
        {**ONE, "kty": "oct", "k": "c2VjcmV0"},
        {**ONE, "n": "!!"},
        {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "kid": "one"},
        public_jwk(private_key("weak RSA"), kid="one"),
        public_jwk(private_key("P-384"), kid="one"),
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "one"},
        "text",
        None,
    ],
    ids=[
        "for encryption",
        "another algorithm's",
        "not for verifying",
        "operations are no list",
        "private",
        "of another type",
        "no number",
        "shared secret",
        "weak",
        "another curve",
        "not on the curve",
        "text",
        "null",
    ],
)
def test_a_key_that_does_not_fit_is_not_used(published: Any) -> None:
    with pytest.raises(ValueError, match="no key"):
        keys(published)


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b"\xff", b"[" * 100_000])
def test_what_is_no_set_of_keys_is_refused(document: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        key_set(document, ["RS256"])


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({}, ["chat"]),
        ({"scope": "openid profile"}, ["chat"]),
        ({"scope": "openid rh:models rh:admin:read chat"}, ["admin:read", "models"]),
        ({"scope": ["rh:admin:write", 7, None]}, ["admin:write"]),
        ({"scope": {"rh:admin:write": True}}, ["chat"]),
    ],
    ids=str,
)
def test_scopes_come_from_the_claim(provider: ProviderServer, claims: dict[str, Any], expected: list[str]) -> None:
    configured = issuer(provider, scope_prefix="rh:", default_scopes=["chat"])
    assert sorted(verify(provider.token(**claims), configured, keys(ONE)).scopes) == expected


def test_the_tenant_comes_from_a_claim(provider: ProviderServer) -> None:
    plain = issuer(provider, tenant=None, tenant_claim="org")
    mapped = issuer(provider, tenant=None, tenant_claim="org", tenants={"42": "acme"})
    assert verify(provider.token(org="acme"), plain, keys(ONE)).tenant == "acme"
    assert verify(provider.token(org="42"), mapped, keys(ONE)).tenant == "acme"
    for value in (None, "", 42, ["acme"], {"acme": 1}):
        with pytest.raises(Unauthorized, match="org"):
            verify(provider.token(org=value), plain, keys(ONE))
    for value in ("acme", 42, ["42"]):
        with pytest.raises(Unauthorized, match="org"):
            verify(provider.token(org=value), mapped, keys(ONE))


def test_operators_are_named_by_the_configuration_only(provider: ProviderServer) -> None:
    assert verify(provider.token(), issuer(provider, operators=["ann"]), keys(ONE)).operator
    assert not verify(provider.token(operator=True), issuer(provider, operators=["bob"]), keys(ONE)).operator


@given(st.text("ey.aA0_-", max_size=60) | st.binary(max_size=60).map(lambda data: f"ey.{data.hex()}.x"))
@settings(max_examples=300)
def test_no_text_does_harm(text: str) -> None:
    with pytest.raises(Unauthorized):
        issuer_of(text)
    configured = IssuerSettings(name="idp", issuer="https://idp.example", audience=["a"], tenant="acme")
    with pytest.raises((Unauthorized, UnknownKey)):
        verify(text, configured, {})


@given(st.data())
@settings(max_examples=100)
def test_a_token_changed_anywhere_is_refused(data: st.DataObject) -> None:
    with_keys = keys(ONE)
    configured = IssuerSettings(name="idp", issuer="https://idp.example", audience=[AUDIENCE], tenant="acme")
    claims = {"iss": "https://idp.example", "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 600}
    token = jwt.encode(claims, private_key("RSA"), algorithm="RS256", headers={"kid": "one"})
    place = data.draw(st.integers(0, len(token) - 1))
    changed = token[:place] + data.draw(st.sampled_from("Ab0_.-=!")) + token[place + 1 :]
    if changed == token:
        assert verify(token, configured, with_keys).subject == "ann"
    else:
        with pytest.raises((Unauthorized, UnknownKey)):
            verify(changed, configured, with_keys)


@pytest.mark.parametrize(
    ("text", "token"), [("eyJ.e.s", True), ("rh_a.b.c", False), ("roundhouse-demo", False), ("eyJ.e", False)]
)
def test_tokens_are_told_from_keys(text: str, token: bool) -> None:
    assert looks_like_token(text) == token


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tenant": None}, "tenant"),
        ({"tenant_claim": "org"}, "tenant"),
        ({"tenants": {"a": "b"}}, "tenant_claim"),
        ({"issuer": "http://idp.example"}, "https"),
        ({"issuer": "idp"}, "https"),
        ({"jwks_url": "file:///etc/passwd"}, "jwks_url"),
        ({"jwks_url": "http://10.0.0.1/"}, "jwks_url"),
    ],
    ids=str,
)
def test_an_issuer_that_makes_no_sense_is_refused(fields: dict[str, Any], reason: str) -> None:
    good = {"name": "idp", "issuer": "https://idp.example", "audience": ["a"], "tenant": "acme"}
    check_issuers([IssuerSettings(**good)])
    with pytest.raises(SettingsError, match=reason):
        check_issuers([IssuerSettings(**{**good, **fields})])
    with pytest.raises(SettingsError, match="same name"):
        check_issuers([IssuerSettings(**good), IssuerSettings(**{**good, "issuer": "https://b.example"})])


HERE: dict[str, Any] = {"tenant": "acme"}
ANYWHERE: dict[str, Any] = {"tenant": None, "tenant_claim": "org"}
THERE: dict[str, Any] = {"tenant": None, "tenant_claim": "org", "tenants": {"x": "other"}}
BOTH: dict[str, Any] = {"tenant": None, "tenant_claim": "org", "tenants": {"x": "other", "y": "acme"}}


@pytest.mark.parametrize(
    ("one", "other", "fine"),
    [
        (HERE, HERE, False),
        (HERE, ANYWHERE, False),
        (ANYWHERE, ANYWHERE, False),
        (HERE, BOTH, False),
        (HERE, THERE, True),
        ({**HERE, "subject_prefix": "a:"}, HERE, False),
        ({**HERE, "subject_prefix": "a:"}, {**HERE, "subject_prefix": "a:b:"}, False),
        ({**HERE, "subject_prefix": "a:"}, {**HERE, "subject_prefix": "b:"}, True),
    ],
)
def test_two_issuers_of_a_tenant_need_prefixes(one: dict[str, Any], other: dict[str, Any], fine: bool) -> None:
    """Of which neither begins with the other: `a:` and `b:x` of one must not be `a:b:` and `x` of the other."""
    issuers = [
        IssuerSettings(name=name, issuer=f"https://{name}.example", audience=["a"], **fields)
        for name, fields in (("one", one), ("other", other))
    ]
    if fine:
        check_issuers(issuers)
    else:
        with pytest.raises(SettingsError, match=r"one and other .* subject_prefix"):
            check_issuers(issuers)


def test_a_prefix_stands_before_the_subject(provider: ProviderServer) -> None:
    """Operators are named as the provider names them."""
    prefixed = issuer(provider, subject_prefix="corp:", operators=["ann"])
    claims = verify(provider.token(), prefixed, keys(ONE))
    assert (claims.subject, claims.operator) == ("corp:ann", True)
    with pytest.raises(Unauthorized, match="1 to 250"):
        verify(provider.token(sub="x" * 251), prefixed, keys(ONE))
