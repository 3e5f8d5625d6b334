"""Users, and keys that are theirs."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.access.identity import Scope
from gateway.records.api_keys import new_key
from gateway.records.directory import Key, Tenant, User
from gateway.services import Gateway

CHATS: Sequence[Scope] = ("chat", "models", "adapters")


async def key_of(gateway: Gateway, user: str, *, tenant: str = "demo", scopes: Sequence[Scope] = CHATS) -> str:
    """Make a user of a tenant, which is made too if there is none; return a key of this user."""
    key, digest = new_key(gateway.secret)
    if gateway.view.tenant(tenant) is None:
        await gateway.directory.write(Tenant(name=tenant), actor="test")
    await gateway.directory.write(User(id=user, tenant=tenant, subject=f"sub-{user}"), actor="test")
    record = Key(id=f"key-{user}", tenant=tenant, user=user, digest=digest, scopes=[*scopes])
    await gateway.directory.write(record, actor="test")
    return key
