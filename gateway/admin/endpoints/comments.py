"""Comments: what users wrote beside their ratings. Only the admins of their own tenant read them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.admin.call import Access, Call
from gateway.admin.endpoints.shapes import Page
from gateway.admin.kit import cursors
from gateway.admin.kit.endpoints import Answer, Endpoints
from gateway.errors import InvalidRequest, invalid_value

endpoints = Endpoints("comments", "What users wrote beside their ratings of answers.")


class CommentState(Struct, frozen=True):
    """What somebody wrote beside a rating."""

    turn: Annotated[str, Meta(description="Id of the response that it is about.")]
    at: Annotated[int, Meta(description="When, in milliseconds since 1970.")]
    rating: Literal["up", "down"]
    reason: str | None
    comment: str


class CommentList(Struct, frozen=True):
    data: list[CommentState]
    next: str | None


@endpoints.get("/comments", access=Access.FILTERED, raises=[InvalidRequest])
async def list_comments(call: Call, query: Page) -> Answer[CommentList]:
    """List the comments of the caller's own tenant, the newest first.

    Nobody else reads them: operators get those of the tenant that their key belongs to.
    """
    tenant = call.principal.tenant
    listing = f"comments:{tenant}"
    comments = await call.gateway.comments.of_tenant(tenant) if tenant else []
    if after := cursors.decode(listing, query.cursor):
        at, _, response = after.partition(" ")
        if not at.isdecimal():
            raise invalid_value("cursor", "not one of this list")
        comments = [comment for comment in comments if (comment.at, comment.response) < (int(at), response)]
    page = comments[: query.limit]
    last = page[-1] if len(comments) > len(page) else None
    return Answer(
        CommentList(
            [CommentState(each.response, each.at, each.rating, each.reason, each.text) for each in page],
            None if last is None else cursors.encode(listing, f"{last.at} {last.response}"),
        )
    )
