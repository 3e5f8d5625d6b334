"""Browser sessions: who has signed in, and an end to it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gateway.access.identity import Principal, Scope
from gateway.admin.call import Access, Call
from gateway.admin.endpoints import records
from gateway.admin.endpoints.shapes import Only
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.errors import NotFound
from gateway.http.sign_in import session_of

endpoints = Endpoints("sessions", "Sessions of people who have signed in with a browser.")


class SessionsQuery(Input, frozen=True):
    tenant: Annotated[Only | None, Meta(description="Only those of this tenant.")] = None
    limit: Annotated[int, Meta(ge=1, le=200, description="Most sessions, newest first.")] = 100


class SessionPath(Input, frozen=True):
    session: Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="Id of the session; its cookie is another.")]


class BrowserSessionState(Struct, frozen=True, kw_only=True):
    """One session."""

    id: str
    tenant: str | None
    user: str | None
    method: Annotated[str, Meta(description="`link`, or the name of an identity provider.")]
    operator: bool
    scopes: list[Scope]
    began_at: float
    expires_at: Annotated[float, Meta(description="When it ends in any case, in seconds since 1970.")]
    current: Annotated[bool, Meta(description="Whether it is the one that asks.")]


class SessionList(Struct, frozen=True):
    data: list[BrowserSessionState]


@endpoints.get("/sessions", access=Access.FILTERED, raises=[NotFound])
async def list_sessions(call: Call, query: SessionsQuery) -> Answer[SessionList]:
    """List sessions that have not ended, the newest first; admins see those of their tenant without operators'."""
    tenant = await records.tenant_of(call, query.tenant)
    found: list[BrowserSessionState] = []
    async for began, principal in call.gateway.sign_in.sessions.newest():
        if _sees(call, principal) and tenant in (None, principal.tenant):
            found.append(_state(call, principal, began))
        if len(found) == query.limit:
            break
    return Answer(SessionList(found))


@endpoints.delete("/sessions/{session}", access=Access.FILTERED, raises=[NotFound])
async def end_session(call: Call, path: SessionPath) -> Answer[None]:
    """End a session, and with it its WebSockets, within a second on every gateway."""
    sessions = call.gateway.sign_in.sessions
    principal = await sessions.read(path.session)
    if principal is None or not _sees(call, principal):
        raise NotFound(f"session: there is no session {path.session[:12]}")
    await call.note("session.end", principal.actor, principal.tenant or None)
    await sessions.end(path.session)
    return Answer(None)


def _sees(call: Call, principal: Principal) -> bool:
    return call.principal.operator or (principal.tenant == call.principal.tenant and not principal.operator)


def _state(call: Call, principal: Principal, began: float) -> BrowserSessionState:
    session = session_of(principal)
    assert session is not None and principal.session is not None
    return BrowserSessionState(
        id=principal.session,
        tenant=principal.tenant or None,
        user=principal.user,
        method=session.method,
        operator=principal.operator,
        scopes=sorted(principal.scopes),
        began_at=began,
        expires_at=session.expires_at,
        current=principal.session == call.principal.session,
    )
