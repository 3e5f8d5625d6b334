"""Who the caller is, and what it may see: what a console draws itself from."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated, Literal, cast

from msgspec import Meta, Struct

from gateway.access.identity import Scope
from gateway.admin.call import Access, Call, serves
from gateway.admin.kit.endpoints import Answer, Api, Endpoints
from gateway.http.sign_in import SignInMethods, SignInSession, session_of, sign_in_methods

endpoints = Endpoints("me", "Who is calling.")


class Me(Struct, frozen=True):
    """The caller."""

    role: Annotated[
        Literal["operator", "tenant_admin"], Meta(description="Operators reach every tenant, admins their own.")
    ]
    tenant: Annotated[
        str | None, Meta(description="Tenant of the caller; null for an operator who signed in where there is none.")
    ]
    user: str | None
    key: Annotated[str, Meta(description="Id of the API key, or what stands for it in the audit log.")]
    scopes: list[Scope]
    session: Annotated[SignInSession | None, Meta(description="How it signed in; null: a key or token was sent.")]
    may: Annotated[
        dict[str, list[Literal["read", "write"]]],
        Meta(
            description="Groups of endpoints, by their tag, of which some serve the caller: for reading and changing."
        ),
    ]
    version: Annotated[str, Meta(description="Version of the gateway.")]
    sign_in: Annotated[SignInMethods, Meta(description="How people can sign in here.")]


@endpoints.get("/me", access=Access.FILTERED)
async def show_me(call: Call) -> Answer[Me]:
    """Show who is calling, and what it may see and change."""
    principal = call.principal
    may: dict[str, list[Literal["read", "write"]]] = {}
    for endpoint in cast(Api, call.request.app.state.api).endpoints:
        action: Literal["read", "write"] = "read" if endpoint.method == "GET" else "write"
        if serves(endpoint, principal) and action not in may.setdefault(endpoint.tag, []):
            may[endpoint.tag].append(action)
    return Answer(
        Me(
            role="operator" if principal.operator else "tenant_admin",
            tenant=principal.tenant or None,
            user=principal.user,
            key=principal.key,
            scopes=sorted(principal.scopes),
            session=session_of(principal),
            may={tag: sorted(actions) for tag, actions in may.items()},
            version=importlib.metadata.version("roundhouse"),
            sign_in=sign_in_methods(call.gateway),
        )
    )
