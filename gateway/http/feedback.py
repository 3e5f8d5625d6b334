"""`POST /v1/responses/{id}/feedback`: what somebody thought of a response. OpenAI has no such endpoint.

Ids of chat completions and completions are accepted too.
"""

from __future__ import annotations

import time
from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.access.identity import Principal
from gateway.errors import Forbidden, InvalidRequest, NotFound
from gateway.http.exchange import JsonResponse, read_object
from gateway.pipeline.routing.decisions import Compared, FeedbackReason
from gateway.pipeline.routing.judge import tier_of
from gateway.protocol.requests import converted
from gateway.services import Gateway, gateway_of
from gateway.turns import Turn
from gateway.turns.comments import Comment
from gateway.turns.ids import response_id

MOST_COMPARED = 8
"""Most answers over which one is preferred at once."""


class FeedbackCreate(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a feedback request."""

    rating: Literal["up", "down", "preferred"] | None
    reason: FeedbackReason | None = None
    over: Annotated[list[str], Meta(max_length=MOST_COMPARED)] = []
    comment: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1000)] | None,
        Meta(
            description="For the tenant's admins, where `chat.comments` allows it; takes the place of the one before."
        ),
    ] = None


async def create(request: Request) -> Response:
    """Record a rating of a response of the caller's tenant, or withdraw it; a response's last rating counts.

    `preferred` is no rating of one response: it says that it is better than those named in `over`.
    """
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    body = converted(await read_object(request), FeedbackCreate)
    if body.reason is not None and body.rating != "down":
        raise InvalidRequest("reason: only with the rating 'down'", param="reason")
    if (body.rating == "preferred") != bool(body.over):
        raise InvalidRequest("over: the responses over which one is 'preferred', and only with that", param="over")
    if body.comment is not None and body.rating not in ("up", "down"):
        raise InvalidRequest("comment: only with the rating 'up' or 'down'", param="comment")
    if body.comment is not None and not gateway.settings.chat.comments_of(principal.tenant):
        raise Forbidden("comment: this tenant takes no comments", param="comment", code="comments_off")
    turn = await gateway.turns.find(response_id(request.path_params["id"]), principal)
    over = [await _beside(turn, named, gateway, principal) for named in dict.fromkeys(map(response_id, body.over))]
    if body.rating == "preferred":
        gateway.decisions.prefer(principal.tenant, _compared(turn), [_compared(other) for other in over])
        gateway.judge.compared(turn, over)
    else:
        await _comment(gateway, principal.tenant, turn.id, body)
        gateway.decisions.think(principal.tenant, turn.id, body.rating or "withdrawn", body.reason)
    if body.rating == "down" and body.reason != "too_slow" and gateway.similar is not None:
        gateway.similar.disliked(principal.tenant, turn.id)
    noted = {"rating": body.rating, "reason": body.reason, "comment": body.comment}
    others = [other.id for other in over]
    return JsonResponse({"object": "response.feedback", "response_id": turn.id, **noted, "over": others})


async def _comment(gateway: Gateway, tenant: str, response: str, body: FeedbackCreate) -> None:
    """Keep what was written beside the last rating, and nothing that was beside an earlier one."""
    if body.comment is None or body.rating is None or body.rating == "preferred":
        await gateway.comments.remove(tenant, response)
    else:
        comment = Comment(response, time.time_ns() // 1_000_000, body.rating, body.reason, body.comment)
        await gateway.comments.write(tenant, comment)


async def _beside(turn: Turn, named: str, gateway: Gateway, principal: Principal) -> Turn:
    """Return another answer of the same user to the question of `turn`.

    Raises:
        NotFound: there is none, or it or `turn` is another user's.
        InvalidRequest: it answers another question, or is the same.
    """
    other = await gateway.turns.find(named, principal)
    if not turn.principal.user == other.principal.user == principal.user:
        raise NotFound(f"over: no response {named[:80]!r} of the same user", param="over", code="response_not_found")
    if other.id == turn.id or _question(other) != _question(turn):
        raise InvalidRequest(f"over: {named[:80]!r} is no other answer to the same question", param="over")
    return other


def _question(turn: Turn) -> object:
    """Return what a turn was asked last."""
    return turn.conversation[-1:], turn.request.prompt


def _compared(turn: Turn) -> Compared:
    return Compared(turn.id, tier_of(turn))


routes: list[BaseRoute] = [Route("/v1/responses/{id}/feedback", create, methods=["POST"])]
