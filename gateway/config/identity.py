"""The `[identity]` section: identity providers whose tokens are accepted beside API keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from engine.tls import Certificate, client_context
from gateway.config.origin import LOOPBACK
from gateway.config.secret_file import read_secret
from gateway.records.directory import Scope
from gateway.records.section import Seconds, Section, SettingsError

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Supported signature algorithms: only asymmetric ones, as a shared secret that checks tokens could also make them."""


class IssuerSettings(Section, frozen=True):
    """An identity provider (OpenID Connect, or anything that signs JWTs and publishes its keys)."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,64}$", description="Name in logs.")]
    issuer: Annotated[str, Meta(description="Value of `iss` in its tokens, letter by letter.")]
    audience: Annotated[list[str], Meta(min_length=1, description="Values of which `aud` must name one.")]
    algorithms: Annotated[
        list[Algorithm], Meta(min_length=1, description="Signature algorithms that are accepted; no others are.")
    ] = msgspec.field(default_factory=lambda: ["RS256", "ES256"])
    jwks_url: Annotated[
        str | None,
        Meta(description="Address of its keys; empty: the one that `<issuer>/.well-known/openid-configuration` names."),
    ] = None
    tenant: Annotated[str | None, Meta(description="Tenant of all its tokens; or use `tenant_claim`.")] = None
    tenant_claim: Annotated[str | None, Meta(description="Claim that names the tenant of a token.")] = None
    tenants: Annotated[
        dict[str, str],
        Meta(description="Tenant for each value of that claim; empty: the value is the tenant's name."),
    ] = msgspec.field(default_factory=dict)
    scopes_claim: Annotated[
        str, Meta(description="Claim with scopes, a list or a text with spaces; names that are no scopes are ignored.")
    ] = "scope"
    scope_prefix: Annotated[str, Meta(description="Prefix of our scopes in that claim, such as `roundhouse:`.")] = ""
    default_scopes: Annotated[list[Scope], Meta(description="Scopes of a token that names none of ours.")] = (
        msgspec.field(default_factory=lambda: ["chat", "models", "adapters"])
    )
    operators: Annotated[
        list[str], Meta(description="`sub` of those whose admin scopes reach every tenant, not only their own.")
    ] = msgspec.field(default_factory=list)
    subject_prefix: Annotated[
        str,
        Meta(
            max_length=64,
            pattern=r"^[\x21-\x7e]*$",
            description="Prefix of its `sub`s in names of users, such as `corp:`. Issuers of one tenant need one "
            "each, so that the users of one are not those of the other.",
        ),
    ] = ""
    client_id: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Id under which this gateway is registered there as a client, so that people can sign in in a "
            "browser; empty: they cannot.",
        ),
    ] = None
    client_secret_file: Annotated[
        str | None,
        Meta(description="File with the secret of that client; empty: it is a public client, which has none."),
    ] = None
    sign_in_scopes: Annotated[
        list[str], Meta(description="OAuth scopes that a sign-in asks for beside `openid`, such as `groups`.")
    ] = msgspec.field(default_factory=list)
    title: Annotated[str, Meta(max_length=64, description="Name on the sign-in page; empty: `name`.")] = ""
    leeway: Annotated[float, Meta(ge=0, le=300, description="Seconds by which clocks may differ.")] = 30.0
    refresh: Annotated[Seconds, Meta(description="Seconds until its keys are read again.")] = 600.0

    @property
    def client_secret(self) -> str | None:
        """Secret of the client, read from its file each time, which may be exchanged; None: it has none.

        Raises:
            SettingsError: the file cannot be read, or is empty.
        """
        if self.client_secret_file is None:
            return None
        return read_secret(self.client_secret_file, f"identity.issuers: {self.name}: client_secret_file")


class IdentitySettings(Section, frozen=True):
    """Identity providers whose tokens are accepted beside API keys, and
    [sessions of browsers](identity.md#signing-in-with-a-browser)."""

    issuers: Annotated[list[IssuerSettings], Meta(description="[Identity providers](identity.md#tokens).")] = (
        msgspec.field(default_factory=list)
    )
    session_idle: Annotated[
        float, Meta(ge=60, description="Seconds after which a browser session that is not used ends.")
    ] = 43_200.0
    session_lifetime: Annotated[
        float, Meta(ge=60, description="Seconds after which a browser session ends in any case.")
    ] = 604_800.0


class EngineTlsSettings(Section, frozen=True):
    """Certificates for engines at wss:// addresses, see [operating.md](operating.md#engines-on-other-machines), and for
    [other servers](upstreams.md) at https:// addresses."""

    ca: Annotated[
        str | None, Meta(description="Authorities that sign engines' certificates (PEM); empty: the machine's.")
    ] = None
    cert: Annotated[str | None, Meta(description="This gateway's certificate (PEM).")] = None
    key: Annotated[str | None, Meta(description="Private key of that certificate (PEM, without a password).")] = None
    server_name: Annotated[
        str | None,
        Meta(
            description="Name that the certificates of engines are for which pools name in `engines`; empty: the host "
            "of the address. Engines that announce themselves say theirs (`--server-name`)."
        ),
    ] = None

    def files(self) -> Certificate | None:
        """Return the certificate files; None if none are configured.

        Raises:
            SettingsError: a file is missing or cannot be used.
        """
        if self.ca is self.cert is self.key is None:
            return None
        if self.ca is None or (self.cert is None) != (self.key is None):
            raise SettingsError("engine_tls: ca is needed, and cert and key belong together")
        files = Certificate(self.ca, self.cert, self.key)
        try:
            client_context(files)
        except ValueError as error:
            raise SettingsError(f"engine_tls: {error}") from None
        return files


def check_issuers(issuers: Sequence[IssuerSettings]) -> None:
    """
    Raises:
        SettingsError: an issuer's fields contradict each other.
    """
    for field in ("name", "issuer"):
        values = [getattr(each, field) for each in issuers]
        if len(set(values)) != len(values):
            raise SettingsError(f"identity.issuers: two have the same {field}")
    for each in issuers:
        where = f"identity.issuers: {each.name}"
        if (each.tenant is None) == (each.tenant_claim is None):
            raise SettingsError(f"{where}: set either tenant or tenant_claim")
        if each.tenants and each.tenant_claim is None:
            raise SettingsError(f"{where}: tenants needs tenant_claim")
        if each.client_id is None and (each.client_secret_file is not None or each.sign_in_scopes):
            raise SettingsError(f"{where}: client_secret_file and sign_in_scopes need client_id")
        if each.client_id is not None and not safe_url(each.issuer):
            raise SettingsError(f"{where}: issuer must be an https:// address, where people sign in")
        _ = each.client_secret  # refused now rather than at the first sign-in
        if not safe_url(each.jwks_url or each.issuer):
            raise SettingsError(f"{where}: {'jwks_url' if each.jwks_url else 'issuer'} must be an https:// address")
    for one, other in combinations(issuers, 2):
        prefixes = (one.subject_prefix, other.subject_prefix)
        alike = prefixes[0].startswith(prefixes[1]) or prefixes[1].startswith(prefixes[0])
        if alike and _share_a_tenant(one, other):
            raise SettingsError(
                f"identity.issuers: {one.name} and {other.name} may speak of the same tenant, where one's users would "
                "be taken for the other's; set a subject_prefix of each, of which neither begins with the other"
            )


def operators_of(issuers: Sequence[IssuerSettings], tenant: str) -> frozenset[str]:
    """Names of the tenant's users whom an issuer's tokens make operators."""
    return frozenset(
        each.subject_prefix + subject
        for each in issuers
        if (tenants := _tenants(each)) is None or tenant in tenants
        for subject in each.operators
    )


def _share_a_tenant(one: IssuerSettings, other: IssuerSettings) -> bool:
    tenants, others = _tenants(one), _tenants(other)
    return tenants is None or others is None or not tenants.isdisjoint(others)


def _tenants(issuer: IssuerSettings) -> frozenset[str] | None:
    """Tenants that an issuer's tokens may be for; None: any, as the token says."""
    if issuer.tenant is not None:
        return frozenset({issuer.tenant})
    return frozenset(issuer.tenants.values()) or None


def safe_url(url: str) -> bool:
    """Whether keys may be read from this address: over HTTPS, or from this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK))
