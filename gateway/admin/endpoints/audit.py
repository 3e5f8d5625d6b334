"""The audit log: list, export, verify."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from gateway.access.directory.audit import SealedAuditRecord
from gateway.admin.call import Access, Call
from gateway.admin.endpoints.shapes import Page, TenantPath
from gateway.admin.kit import cursors
from gateway.admin.kit.endpoints import JSON_LINES, Answer, Endpoints, Input

endpoints = Endpoints("audit", "Who changed what, and when: a chain of hashes.")

_PAGE = 500
_MOST_PAGES = 10
"""Most pages of the log that one request searches for entries of one tenant."""


class AuditEntry(Struct, frozen=True):
    """One change, as the log holds it."""

    sequence: int
    at: Annotated[int, Meta(description="Milliseconds since 1970 by Redis' clock.")]
    actor: str
    action: str
    subject: str
    tenant: str | None
    changes: Annotated[
        dict[str, Any], Meta(description="Field to [before, after]; of secret fields only that they changed.")
    ]
    hash: str


class AuditList(Struct, frozen=True):
    data: list[AuditEntry]
    next: str | None


class AuditVerification(Struct, frozen=True):
    """What checking the log has found."""

    intact: bool
    entries: Annotated[int, Meta(description="Entries that were found good.")]
    first: Annotated[int, Meta(description="Number of the first entry that is still there.")]
    last: int
    problem: Annotated[str | None, Meta(description="Where it is broken first, and how.")]


class AuditExport(Input, frozen=True):
    after: Annotated[int, Meta(ge=0, le=2**53, description="Number of the last entry that is not wanted.")] = 0


@endpoints.get("/audit", access=Access.OPERATOR)
async def list_entries(call: Call, query: Page) -> Answer[AuditList]:
    """List entries, the newest first."""
    return Answer(await _page(call, query, None))


@endpoints.get("/tenants/{tenant}/audit", access=Access.TENANT)
async def list_tenant_entries(call: Call, path: TenantPath, query: Page) -> Answer[AuditList]:
    """List entries that concern one tenant, the newest first.

    A page may hold fewer entries than asked for, even none, and still have a next one.
    """
    return Answer(await _page(call, query, path.tenant))


@endpoints.get("/audit/verification", access=Access.OPERATOR)
async def verify_log(call: Call) -> Answer[AuditVerification]:
    """Check the whole log: that no entry was changed, removed or put in between."""
    verifier, problem = await call.gateway.directory.audit.verify()
    last = verifier.last.sequence
    text = None if problem is None else f"entry {problem.sequence}: {problem.why}"
    return Answer(AuditVerification(problem is None, verifier.entries, last - verifier.entries + 1, last, text))


@endpoints.get("/audit/export", access=Access.OPERATOR, produces=JSON_LINES)
async def export_log(call: Call, query: AuditExport) -> Response:
    """Export all entries, oldest first, as JSON Lines that `roundhouse audit verify` can check."""

    async def lines() -> AsyncIterator[bytes]:
        async for logged in call.gateway.directory.audit.entries(after=query.after):
            yield logged.line()

    return StreamingResponse(lines(), media_type=JSON_LINES, headers={"cache-control": "no-store"})


async def _page(call: Call, query: Page, tenant: str | None) -> AuditList:
    listing = f"audit:{tenant or ''}"
    position = cursors.decode(listing, query.cursor)
    before = int(position) if position.isdecimal() else None
    found: list[AuditEntry] = []
    for _ in range(_MOST_PAGES):
        size = query.limit if tenant is None else _PAGE
        page = await call.gateway.directory.audit.read_back(before, size)
        for logged in page:
            entry = _entry(logged)
            before = entry.sequence
            if tenant in (None, entry.tenant):
                found.append(entry)
                if len(found) == query.limit:
                    return AuditList(found, cursors.encode(listing, str(before)) if before > 1 else None)
        if len(page) < size:
            return AuditList(found, None)
    return AuditList(found, cursors.encode(listing, str(before)))


def _entry(logged: SealedAuditRecord) -> AuditEntry:
    entry = logged.read()
    return AuditEntry(
        entry.sequence, entry.at, entry.actor, entry.action, entry.subject, entry.tenant, entry.changes, logged.hash
    )
