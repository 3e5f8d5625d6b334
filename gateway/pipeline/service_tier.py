"""Service tiers: which class of the engine's scheduler and which share of the engine a request gets."""

from __future__ import annotations

import hashlib

from msgspec import Struct

from engine.wire import ServiceClass
from gateway.errors import InvalidRequest
from gateway.protocol.requests import ServiceTier
from gateway.records.directory import Tenant

_CLASSES: dict[ServiceTier, ServiceClass] = {
    "flex": "batch",
    "priority": "premium",
    "fast": "premium",
    "ultrafast": "premium",
}
"""Scheduler class by service tier; `auto`, `default` and `scale` stand for the tenant's own class."""
_TIERS: dict[ServiceClass, ServiceTier] = {"premium": "priority", "standard": "default", "batch": "flex"}


class Share(Struct, frozen=True):
    """The tenant and scheduler class under which an engine serves a turn."""

    tenant: str
    """Digest of the tenant's name, as engines need not know names."""
    weight: float
    service: ServiceClass

    @property
    def tier(self) -> ServiceTier:
        """The service tier that clients are told."""
        return _TIERS[self.service]


def may_have(tenant: Tenant, service: ServiceClass) -> bool:
    """Whether a tenant's requests may be served in a class."""
    return service == tenant.service or service in tenant.services


def share_of(tenant: Tenant, asked: ServiceTier) -> Share:
    """The share of a turn that asks for a service tier.

    Raises:
        InvalidRequest: the tenant may not have it.
    """
    service = _CLASSES.get(asked, tenant.service)
    if not may_have(tenant, service):
        tiers = sorted({"auto", "default", *(tier for tier, its in _CLASSES.items() if may_have(tenant, its))})
        raise InvalidRequest(
            f"service_tier: {asked!r} is not open to this tenant; use one of {', '.join(tiers)}",
            param="service_tier",
            code="invalid_value",
        )
    digest = hashlib.blake2b(tenant.name.encode(), digest_size=16, person=b"tenant").hexdigest()
    return Share(digest, tenant.weight, service)
