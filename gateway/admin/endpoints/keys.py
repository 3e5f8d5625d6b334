"""API keys: make, rotate, limit, revoke. A key is shown once."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.access.directory.change import Put
from gateway.access.identity.last_used import last_used
from gateway.admin.call import Access, Call
from gateway.admin.endpoints import records, shapes
from gateway.admin.endpoints.shapes import Page, PathName, TenantPath
from gateway.admin.kit.conditions import entity_tag
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.errors import Conflict, Forbidden, PreconditionFailed
from gateway.records.api_keys import new_key
from gateway.records.directory import Key, Record, Timestamp

endpoints = Endpoints("keys", "API keys of a tenant. Only keyed digests are stored.")

_FIXED = ["id", "tenant", "digest", "replaces", "counts_as"]
Expiry = Annotated[
    int,
    Meta(
        ge=1_700_000_000,
        le=253_402_300_799,
        description="When it expires, in seconds since 1970 (a time, not how long); null: never.",
    ),
]
NewKey = shapes.creation("NewKey", Key, without=_FIXED, instead={"expires_at": Expiry | None})
KeyChange = shapes.change("KeyChange", Key, without=[*_FIXED, "user"])
KeyState = shapes.state(
    "KeyState",
    Key,
    without=["digest"],
    beside={
        "last_used_at": Annotated[
            Timestamp | None,
            Meta(description="When a request last came with it, to the minute; null: never. The ETag is without it."),
        ]
    },
)
Shown = Annotated[
    str | None,
    Meta(description="The key itself, this once; null if the request was answered before: rotate it then."),
]


class KeyPath(TenantPath, frozen=True):
    key: Annotated[PathName, Meta(description="Its id.")]


class KeyList(Struct, frozen=True):
    data: list[KeyState]  # type: ignore[valid-type]
    next: str | None


class NewKeyShown(Struct, frozen=True):
    """A key that was just made."""

    key: Shown
    record: KeyState  # type: ignore[valid-type]


class Rotation(Input, frozen=True):
    overlap_seconds: Annotated[int, Meta(ge=0, le=30 * 86400, description="How long the old key still works.")] = 86400
    expires_at: Expiry | None = None


@endpoints.get("/tenants/{tenant}/keys", access=Access.TENANT)
async def list_keys(call: Call, path: TenantPath, query: Page) -> Answer[KeyList]:
    """List the keys of a tenant, without the keys themselves."""
    states, following = await records.page_of(call, Key, query, KeyState, tenant=path.tenant)
    return Answer(KeyList(await _with_last_use(call, path.tenant, states), following))


@endpoints.create(
    "/tenants/{tenant}/keys",
    access=Access.TENANT,
    raises=[Conflict],
    body_type=NewKey,
    example={"description": "build server", "scopes": ["chat", "models"], "quota": {"requests_per_minute": 60}},
)
async def create_key(call: Call, path: TenantPath, body: Any) -> Answer[NewKeyShown]:
    """Make a key."""
    fields = msgspec.structs.asdict(body)
    records.refuse_reserved(call, fields, "operator")
    text, digest = new_key(call.gateway.secret)
    key = Key(id=call.new_id("key"), tenant=path.tenant, digest=digest, **fields)
    applied = await call.gateway.directory.apply([Put(key, 0)], actor=call.actor, once=call.once(body))
    return _shown(applied.records[0], None if applied.replayed else text)


@endpoints.get("/tenants/{tenant}/keys/{key}", access=Access.TENANT, versioned=True)
async def show_key(call: Call, path: KeyPath) -> Answer[KeyState]:  # type: ignore[valid-type]
    """Show a key, without the key itself."""
    answer = records.answer(await records.find(call, Key, path.key, tenant=path.tenant), KeyState)
    (state,) = await _with_last_use(call, path.tenant, [answer.body])
    return dataclasses.replace(answer, body=state)


@endpoints.patch(
    "/tenants/{tenant}/keys/{key}",
    access=Access.TENANT,
    versioned=True,
    raises=[Conflict],
    body_type=KeyChange,
    example={"quota": {"spend_per_day": 1_000_000}},
)
async def change_key(call: Call, path: KeyPath, body: Any) -> Answer[KeyState]:  # type: ignore[valid-type]
    """Change what a key may do; fields that are left out stay."""
    fields = shapes.given(body)
    records.refuse_reserved(call, fields, "operator")
    key = await _changeable(call, path)
    answer = await records.change(call, key, fields, KeyState)
    (state,) = await _with_last_use(call, path.tenant, [answer.body])
    return dataclasses.replace(answer, body=state)


@endpoints.create(
    "/tenants/{tenant}/keys/{key}/rotate",
    access=Access.TENANT,
    raises=[Conflict, PreconditionFailed],
    example={"overlap_seconds": 3600},
)
async def rotate_key(call: Call, path: KeyPath, body: Rotation) -> Answer[NewKeyShown]:
    """Replace a key by a new one; the old one still works for a while.

    The new key has the old one's user, scopes and quota, and limits count both together. It expires when this request
    says, whatever the old one did.
    """
    old = await _changeable(call, path)
    ends = int(time.time()) + body.overlap_seconds
    text, digest = new_key(call.gateway.secret)
    fresh, expiring = old.replaced_by(call.new_id("key"), digest, expires_at=body.expires_at, ends=ends)
    applied = await call.gateway.directory.apply(
        [Put(fresh, 0), Put(expiring, old.revision)], actor=call.actor, once=call.once(body)
    )
    return _shown(applied.records[0], None if applied.replayed else text)


@endpoints.delete("/tenants/{tenant}/keys/{key}", access=Access.TENANT, versioned=True, raises=[Conflict])
async def revoke_key(call: Call, path: KeyPath) -> Answer[None]:
    """Revoke a key. Gateways refuse it within a second."""
    return await records.delete(call, await _changeable(call, path))


async def _changeable(call: Call, path: KeyPath) -> Key:
    """Return the key of this path.

    Raises:
        NotFound: there is none.
        Forbidden: it is an operator's, and the caller is none.
    """
    key = await records.find(call, Key, path.key, tenant=path.tenant)
    if key.operator and not call.principal.operator:
        raise Forbidden("this is an operator's key; only operators may change, rotate or revoke it")
    return key


async def _with_last_use(call: Call, tenant: str, states: Sequence[Any]) -> list[Any]:
    used = await last_used(call.gateway.redis, tenant, [state.id for state in states])
    return [msgspec.structs.replace(state, last_used_at=used.get(state.id)) for state in states]


def _shown(record: Record | None, text: str | None) -> Answer[NewKeyShown]:
    assert isinstance(record, Key)
    return Answer(
        NewKeyShown(text, shapes.shown(record, KeyState)),
        etag=entity_tag(record.revision),
        location=f"/tenants/{record.tenant}/keys/{record.id}",
        replayed=text is None,
    )
