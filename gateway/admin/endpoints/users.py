"""Users: people and services of a tenant, as an identity provider knows them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.admin.call import Access, Call
from gateway.admin.endpoints import records, shapes
from gateway.admin.endpoints.shapes import Page, PathName, TenantPath
from gateway.admin.kit.endpoints import Answer, Endpoints
from gateway.config.identity import operators_of
from gateway.errors import Conflict, Forbidden
from gateway.records.directory import Key, User

endpoints = Endpoints("users", "People and services of a tenant, as an identity provider knows them.")

_HIDDEN = ["tenant", "email_digest"]
NewUser = shapes.creation("NewUser", User, without=["id", *_HIDDEN])
UserChange = shapes.change("UserChange", User, without=["id", *_HIDDEN])
UserState = shapes.state("UserState", User, without=["email_digest"])


class UserPath(TenantPath, frozen=True):
    user: Annotated[PathName, Meta(description="Its id.")]


class UserList(Struct, frozen=True):
    data: list[UserState]  # type: ignore[valid-type]
    next: str | None


@endpoints.get("/tenants/{tenant}/users", access=Access.TENANT)
async def list_users(call: Call, path: TenantPath, query: Page) -> Answer[UserList]:
    """List the users of a tenant."""
    return Answer(UserList(*await records.page_of(call, User, query, UserState, tenant=path.tenant)))


@endpoints.create(
    "/tenants/{tenant}/users",
    access=Access.TENANT,
    raises=[Conflict],
    body_type=NewUser,
    example={"subject": "auth0|5f7c8e", "description": "Ada", "scopes": ["chat", "models"]},
)
async def create_user(call: Call, path: TenantPath, body: Any) -> Answer[UserState]:  # type: ignore[valid-type]
    """Make a user."""
    user = User(id=call.new_id("user"), tenant=path.tenant, **msgspec.structs.asdict(body))
    _check_subject(call, path, user.subject)
    return await records.create(call, user, UserState, f"/tenants/{path.tenant}/users/{user.id}")


@endpoints.get("/tenants/{tenant}/users/{user}", access=Access.TENANT, versioned=True)
async def show_user(call: Call, path: UserPath) -> Answer[UserState]:  # type: ignore[valid-type]
    """Show a user."""
    return records.answer(await records.find(call, User, path.user, tenant=path.tenant), UserState)


@endpoints.patch(
    "/tenants/{tenant}/users/{user}",
    access=Access.TENANT,
    versioned=True,
    raises=[Conflict],
    body_type=UserChange,
    example={"disabled": True},
)
async def change_user(call: Call, path: UserPath, body: Any) -> Answer[UserState]:  # type: ignore[valid-type]
    """Change a user; fields that are left out stay."""
    user, fields = await _changeable(call, path), shapes.given(body)
    _check_subject(call, path, fields.get("subject", user.subject))
    return await records.change(call, user, fields, UserState)


@endpoints.delete("/tenants/{tenant}/users/{user}", access=Access.TENANT, versioned=True, raises=[Conflict])
async def delete_user(call: Call, path: UserPath) -> Answer[None]:
    """Delete a user that has no keys any more."""
    return await records.delete(call, await _changeable(call, path))


async def _changeable(call: Call, path: UserPath) -> User:
    """Return the user of this path.

    Raises:
        NotFound: there is none.
        Forbidden: it is an operator's or has an operator's key, which a change could take away, and the caller is no
            operator.
    """
    user = await records.find(call, User, path.user, tenant=path.tenant)
    _check_subject(call, path, user.subject)
    if not call.principal.operator:
        async for key in call.gateway.directory.every(Key, user=user.id):
            if key.operator:
                raise Forbidden("an operator's key is this user's; only operators may change or delete the user")
    return user


def _check_subject(call: Call, path: TenantPath, subject: str) -> None:
    """
    Raises:
        Forbidden: its tokens are an operator's, whom a record could shut out, and the caller is no operator.
    """
    issuers = call.gateway.settings.identity.issuers
    if not call.principal.operator and subject in operators_of(issuers, path.tenant):
        raise Forbidden("this subject is an operator's; only operators may make or change the user", param="subject")
