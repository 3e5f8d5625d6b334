"""Records of the directory: each is one JSON document in Redis, without fields that hold their default. Pure.

The store sets `revision`, `created_at` and `updated_at`. A revision is the number of the audit entry that wrote the
record, so none ever comes twice, not even of a record that was deleted and made anew: it can serve as an ETag.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Annotated, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from engine.wire import ServiceClass
from gateway.records.quota import Quota

Scope = Literal["chat", "models", "adapters", "admin:read", "admin:write"]
"""A permission of a caller: hold turns; list models; name adapters as models; read, and change, what `/admin` shows."""
Kind = Literal["tenant", "user", "key", "price", "route", "replica", "pool"]

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]{1,64}\Z")]
PublicName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:/-]{1,128}\Z")]
"""Name of a model or an adapter, as clients write it."""
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Text = Annotated[str, Meta(max_length=500)]
Timestamp = Annotated[int, Meta(ge=0, le=253_402_300_799)]
"""Whole seconds since 1970, until the end of the year 9999."""
MicroDollars = Annotated[int, Meta(ge=0, le=1_000_000_000_000)]
Quotas = Annotated[dict[PublicName, Quota], Meta(max_length=200)]


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all records. A newer gateway may have written one: fields that nobody knows here are ignored, also in
    the structs that a record holds."""

    KIND: ClassVar[Kind]
    IDENTITY: ClassVar[str] = "id"
    """Name of the field that tells one record from another of its kind."""
    SECRET: ClassVar[frozenset[str]] = frozenset()
    """Fields that the audit log never shows."""

    revision: Annotated[int, Meta(ge=0, description="Changes with every write; 0 is a record that is not stored.")] = 0
    created_at: Timestamp = 0
    updated_at: Timestamp = 0

    @property
    def identity(self) -> str:
        """Value of the identity field."""
        return str(getattr(self, self.IDENTITY))

    @property
    def belongs_to(self) -> str | None:
        """Tenant whose record this is; None if it is the operator's."""
        return getattr(self, "tenant", None)


R = TypeVar("R", bound=Record)


class Tenant(Record, frozen=True, kw_only=True):
    """A customer or team."""

    KIND = "tenant"
    IDENTITY = "name"

    name: Annotated[Name, Meta(description="Name in logs, statistics and Redis keys.")]
    description: Annotated[Text, Meta(description="For people.")] = ""
    weight: Annotated[float, Meta(ge=0.01, le=100, description="Share of an engine beside others of its class.")] = 1.0
    service: Annotated[ServiceClass, Meta(description="Class of requests that name no `service_tier`.")] = "standard"
    services: Annotated[
        list[ServiceClass], Meta(description="Classes it may ask for beside its own.", max_length=3)
    ] = msgspec.field(default_factory=lambda: ["standard", "batch"])
    quota: Annotated[Quota | None, Meta(description="What it may use; a field left out: as in `[limits]`.")] = None
    model_quotas: Annotated[Quotas, Meta(description="What it may use of single models.")] = {}
    adapter_quotas: Annotated[Quotas, Meta(description="What it may use of single adapters.")] = {}
    own_adapter_quotas: Annotated[
        Quotas, Meta(description="What its own admins let it use of single adapters; the stricter of both counts.")
    ] = {}
    user_quotas: Annotated[Quotas, Meta(description="What single users may use, by their ids.")] = {}
    models: Annotated[
        Annotated[list[PublicName], Meta(max_length=1000)] | None,
        Meta(description="Models and adapters it may use; null: all that are open to it."),
    ] = None
    unknown_parameters: Annotated[
        Literal["refuse", "ignore"], Meta(description="What to do with parameters that no request has.")
    ] = "refuse"
    disabled: Annotated[bool, Meta(description="Refuse all its requests.")] = False

    @property
    def belongs_to(self) -> str | None:
        return self.name

    def may_use(self, name: str) -> bool:
        """Whether its list of models and adapters has this one."""
        return self.models is None or name in self.models


class User(Record, frozen=True, kw_only=True):
    """A person or service of a tenant, known by what an identity provider calls it."""

    KIND = "user"
    SECRET = frozenset({"email_digest"})

    id: Name
    tenant: Name
    subject: Annotated[
        str, Meta(min_length=1, max_length=255, description="The `sub` of its tokens; unique in the tenant.")
    ]
    description: Annotated[Text, Meta(description="For people.")] = ""
    email_digest: Annotated[Digest | None, Meta(description="Keyed digest of the e-mail address.")] = None
    scopes: Annotated[
        Annotated[list[Scope], Meta(max_length=5)] | None,
        Meta(description="What it may do; null: what its tokens or keys say."),
    ] = None
    disabled: Annotated[bool, Meta(description="Refuse all its requests.")] = False


class Key(Record, frozen=True, kw_only=True):
    """An API key, of which only a keyed digest is stored."""

    KIND = "key"
    SECRET = frozenset({"digest"})

    id: Annotated[Name, Meta(description="Name of the key in logs.")]
    tenant: Name
    user: Annotated[Name | None, Meta(description="Whose it is, if it is a person's.")] = None
    digest: Annotated[Digest, Meta(description="Hex digest by which it is found.")]
    description: Annotated[Text, Meta(description="For people.")] = ""
    scopes: Annotated[list[Scope], Meta(max_length=5, description="What it may do.")] = msgspec.field(
        default_factory=lambda: ["chat", "models", "adapters"]
    )
    operator: Annotated[bool, Meta(description="Whether its admin scopes reach every tenant.")] = False
    expires_at: Annotated[Timestamp | None, Meta(description="From then on it is refused; null: never.")] = None
    quota: Annotated[Quota | None, Meta(description="What it may use beside the tenant's quota.")] = None
    disabled: Annotated[bool, Meta(description="Refuse it.")] = False
    replaces: Annotated[Name | None, Meta(description="The key in whose place it was made.")] = None
    counts_as: Annotated[
        Name | None, Meta(description="The first of the keys that it replaces: limits count all of them together.")
    ] = None

    def replaced_by(self, id: str, digest: str, *, expires_at: int | None, ends: int) -> tuple[Key, Key]:
        """A rotation: the new key with the rights of this one, and this one as it is from now on.

        Args:
            expires_at: of the new key, in seconds since 1970.
            ends: when this one expires, unless it does before.
        """
        fresh = msgspec.structs.replace(
            self,
            id=id,
            digest=digest,
            replaces=self.id,
            counts_as=self.counts_as or self.id,
            expires_at=expires_at,
            revision=0,
        )
        ends = ends if self.expires_at is None else min(ends, self.expires_at)
        return fresh, msgspec.structs.replace(self, expires_at=ends)


class Price(Record, frozen=True, kw_only=True):
    """What tokens of a model or an adapter cost, in micro-dollars (a dollar is 1,000,000) per million tokens."""

    KIND = "price"
    IDENTITY = "name"

    name: Annotated[PublicName, Meta(description="Of a model or an adapter.")]
    input: Annotated[MicroDollars, Meta(description="Price of prompt tokens that were computed.")]
    output: Annotated[MicroDollars, Meta(description="Price of generated tokens.")]
    cached_input: Annotated[
        MicroDollars | None, Meta(description="Prompt tokens found in the prefix cache; null: as `input`.")
    ] = None


class Target(Struct, frozen=True, kw_only=True):
    """A model or adapter of a route, and its weight."""

    model: Annotated[PublicName, Meta(description="Model or adapter that answers.")]
    weight: Annotated[int, Meta(ge=0, le=1000, description="Share of the route's requests beside the others'.")]


class Shadow(Struct, frozen=True, kw_only=True):
    """A model that is tried with copies of requests; nobody sees its answers."""

    model: Annotated[PublicName, Meta(description="Model or adapter that the copies go to.")]
    percent: Annotated[int, Meta(ge=1, le=100, description="Part of the route's conversations that is copied.")]


class Route(Record, frozen=True, kw_only=True):
    """A public name whose requests are shared among several models or adapters."""

    KIND = "route"
    IDENTITY = "name"

    name: Annotated[PublicName, Meta(description="What clients give as `model`.")]
    targets: Annotated[
        list[Target],
        Meta(
            min_length=1, max_length=16, description="The first one is the stable one, which others are compared with."
        ),
    ]
    slow_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=3600)] | None,
        Meta(description="A first token later than this counts against a target; null: none does."),
    ] = None
    shadow: Annotated[
        Shadow | None, Meta(description="Gets copies of requests that the first target has answered.")
    ] = None
    description: Annotated[Text, Meta(description="For people.")] = ""
    disabled: bool = False
    tenant: Annotated[
        Name | None, Meta(description="Whose it is: nobody else has it, and its admins change it; null: everybody's.")
    ] = None


class ReplicaControl(Record, frozen=True, kw_only=True):
    """How much one engine is to be used. Without a record: as much as any other."""

    KIND = "replica"
    IDENTITY = "name"

    name: Annotated[Name, Meta(description="Id of its process.")]
    weight: Annotated[
        float, Meta(ge=0.01, le=100, description="Share of its pool's turns beside the other replicas'.")
    ] = 1.0
    drained: Annotated[bool, Meta(description="Send it no new turns; running ones finish.")] = False
    move_after: Annotated[
        Annotated[float, Meta(ge=0, le=86_400)] | None,
        Meta(
            description="Seconds after which turns that still run on a drained replica go on in others of its pool; "
            "null: they finish where they are."
        ),
    ] = None


class PoolControl(Record, frozen=True, kw_only=True):
    """How many engines a pool may have. Without a record: as many as the configuration says."""

    KIND = "pool"
    IDENTITY = "name"

    name: Annotated[Name, Meta(description="Tier of the pool.")]
    min_replicas: Annotated[
        Annotated[int, Meta(ge=0, le=1000)] | None,
        Meta(description="Fewest engines; null: the configuration's number."),
    ] = None
    max_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(description="Most engines; null: the configuration's number."),
    ] = None


_TYPES: tuple[type[Record], ...] = (Tenant, User, Key, Price, Route, ReplicaControl, PoolControl)
KINDS: dict[Kind, type[Record]] = {kind.KIND: kind for kind in _TYPES}


def new_id(kind: Kind) -> str:
    """A new identity for a user or a key, such as `key_3f9c2a7b10d4e586`."""
    return f"{kind}_{secrets.token_hex(8)}"


def email_digest(email: str, secret: bytes) -> str:
    """Hex HMAC-SHA-256 of an e-mail address under the installation's secret; upper and lower case are the same."""
    return hmac.digest(secret, f"roundhouse-email:{email.strip().lower()}".encode(), hashlib.sha256).hex()


def encode(record: Record) -> str:
    """Encode a record as the JSON document that Redis holds."""
    return msgspec.json.encode(record).decode()


_decoders = {kind: msgspec.json.Decoder(kind) for kind in KINDS.values()}


def decode(kind: type[R], document: bytes | str) -> R:
    """Decode a record from its JSON document.

    Raises:
        ValueError: somebody has written something else there.
    """
    return _decoders[kind].decode(document)  # type: ignore[return-value]  # the dictionary pairs them
