"""Changes of the directory, with their conditions and bounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gateway.records.directory import Key, Kind, Price, Record, Tenant


class Put(Struct, frozen=True):
    """Create or replace a record."""

    record: Record
    expected: int | None = None
    """Revision that is to be replaced; 0: none may exist; None: any."""


class Delete(Struct, frozen=True):
    """Remove a record."""

    kind: Kind
    identity: str
    expected: int | None = None


class Note(Struct, frozen=True):
    """Something that was changed elsewhere; it is only entered in the audit log."""

    action: str
    """Name of the action, such as `adapter.swap`."""
    subject: str
    tenant: str | None = None
    changes: dict[str, Any] = {}
    """Changed fields, never a secret."""


Change = Put | Delete | Note


class Idempotency(Struct, frozen=True):
    """Makes a change happen once, however often it is requested."""

    key: str
    """Key that the client chose, unique for its actor."""
    digest: str
    """Digest of the request: the same key with another request is refused."""


class Caps(Struct, frozen=True):
    """Most records of each kind, and most records of the audit log."""

    tenants: int = 10_000
    users_per_tenant: int = 100_000
    keys_per_tenant: int = 10_000
    prices: int = 10_000
    routes: int = 10_000
    routes_per_tenant: int = 50
    replicas: int = 10_000
    pools: int = 100
    audit: int = 50_000

    def nearly_full(self, entries: int) -> bool:
        """Whether the audit log should be exported now."""
        return entries >= 0.8 * self.audit

    def of_tenant(self, kind: Kind) -> int | None:
        """Return the most records of a kind that belong to one tenant; None: it is not counted by tenant."""
        per_tenant: dict[Kind, int] = {
            "user": self.users_per_tenant,
            "key": self.keys_per_tenant,
            "route": self.routes_per_tenant,
        }
        return per_tenant.get(kind)

    def of(self, kind: Kind) -> int | None:
        """Return the most records of a kind in all; None: it is counted by tenant only."""
        in_all: dict[Kind, int] = {
            "tenant": self.tenants,
            "price": self.prices,
            "route": self.routes,
            "replica": self.replicas,
            "pool": self.pools,
        }
        return in_all.get(kind)


class Configured(Struct, frozen=True):
    """Records of the configuration file: read-only here."""

    tenants: Mapping[str, Tenant] = {}
    keys: Mapping[str, Key] = {}
    """API keys by id."""
    prices: Mapping[str, Price] = {}

    def of(self, kind: Kind) -> Mapping[str, Record]:
        """Return the records of a kind by identity."""
        held: dict[Kind, Mapping[str, Record]] = {"tenant": self.tenants, "key": self.keys, "price": self.prices}
        return held.get(kind, {})
