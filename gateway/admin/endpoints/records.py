"""Shared code of endpoints for the directory's records: read, list, create, change, delete with conditions."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from gateway.access.directory.change import Put
from gateway.admin.call import Call
from gateway.admin.endpoints.shapes import Page, shown
from gateway.admin.kit import cursors
from gateway.admin.kit.conditions import entity_tag
from gateway.admin.kit.endpoints import Answer
from gateway.errors import Forbidden, NotFound
from gateway.records.directory import Record, Tenant

R = TypeVar("R", bound=Record)


async def find(call: Call, kind: type[R], identity: str, *, tenant: str | None = None) -> R:
    """Read a record.

    Args:
        tenant: the tenant to which it must belong.

    Raises:
        NotFound: there is none.
    """
    record = await call.gateway.directory.get(kind, identity)
    if record is None or (tenant is not None and record.belongs_to != tenant):
        raise NotFound(f"no {kind.KIND} is named {identity!r}")
    return record


async def tenant_of(call: Call, asked: str | None) -> str | None:
    """Return the tenant that an answer is about: the one that was asked for, or an admin's own; None: all of them.

    Raises:
        NotFound: there is no such tenant, or it is not the caller's.
    """
    if asked is None:
        return None if call.principal.operator else call.principal.tenant
    if call.principal.operator or asked == call.principal.tenant:
        await find(call, Tenant, asked)
        return asked
    raise NotFound(f"no tenant is named {asked!r}")


async def page_of(
    call: Call, kind: type[R], query: Page, state: type[Struct], *, tenant: str | None = None
) -> tuple[list[Struct], str | None]:
    """Return a page of records as they are shown, and the cursor of the next one."""
    listing = f"{kind.KIND}:{tenant or ''}"
    after = cursors.decode(listing, query.cursor)
    page = await call.gateway.directory.page(kind, tenant=tenant, after=after, limit=query.limit)
    return [shown(record, state) for record in page.records], page.next and cursors.encode(listing, page.next)


async def create(call: Call, record: R, state: type[Struct], location: str) -> Answer[Any]:
    """Store a new record.

    Raises:
        Conflict: there is one of that name; see also `gateway.access.directory.plan.plan`.
    """
    applied = await call.gateway.directory.apply([Put(record, 0)], actor=call.actor, once=call.once(record))
    stored = applied.records[0]
    assert stored is not None
    return answer(stored, state, location=location, replayed=applied.replayed)


async def change(call: Call, record: R, fields: dict[str, Any], state: type[Struct]) -> Answer[Any]:
    """Change fields of a record, if it is still as the caller has read it.

    Raises:
        PreconditionFailed: it is not; see also `gateway.access.directory.plan.plan`.
    """
    call.match().check(entity_tag(record.revision))
    changed = msgspec.structs.replace(record, **fields)
    written = await call.gateway.directory.write(changed, actor=call.actor, expected=record.revision)
    return answer(written, state)


async def delete(call: Call, record: Record) -> Answer[None]:
    """Remove a record, if it is still as the caller has read it. Raises as `change`."""
    call.match().check(entity_tag(record.revision))
    await call.gateway.directory.delete(type(record), record.identity, actor=call.actor, expected=record.revision)
    return Answer(None)


def answer(record: Record, state: type[Struct], *, location: str | None = None, replayed: bool = False) -> Answer[Any]:
    """Return a record as an answer, with its ETag."""
    return Answer(shown(record, state), etag=entity_tag(record.revision), location=location, replayed=replayed)


def refuse_reserved(call: Call, fields: dict[str, Any], *names: str) -> None:
    """Refuse fields that only operators may set.

    Raises:
        Forbidden: the caller is no operator, and sets one of these fields.
    """
    for name in names:
        if not call.principal.operator and fields.get(name):
            raise Forbidden(f"{name}: only operators may set it", param=name)
