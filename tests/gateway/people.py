"""Users, and keys that are theirs."""

from __future__ import annotations

from gateway.records.api_keys import new_key
from gateway.records.directory import Key, Tenant, User
from gateway.services import Gateway


async def key_of(gateway: Gateway, user: str, *, tenant: str = "demo") -> str:
    """Make a user of a tenant, which is made too if there is none; return a key of this user."""
    key, digest = new_key(gateway.secret)
    if gateway.view.tenant(tenant) is None:
        await gateway.directory.write(Tenant(name=tenant), actor="test")
    await gateway.directory.write(User(id=user, tenant=tenant, subject=f"sub-{user}"), actor="test")
    await gateway.directory.write(Key(id=f"key-{user}", tenant=tenant, user=user, digest=digest), actor="test")
    return key
