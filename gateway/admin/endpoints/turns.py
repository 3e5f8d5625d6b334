"""Single turns: what each used and cost, how long it took and why it was routed as it was; never what was said."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from gateway.admin.call import Access, Call
from gateway.admin.endpoints.decisions import DecisionState, decision_state
from gateway.admin.endpoints.records import tenant_of
from gateway.admin.endpoints.shapes import FirstDay, LastDay, Only, Page, days, midnight
from gateway.admin.kit import cursors
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.billing import recent
from gateway.billing.cost import rounded_up
from gateway.billing.entry import LedgerEntry, Outcome
from gateway.billing.recent import TurnPlace, TurnQuery
from gateway.billing.report import tenants
from gateway.errors import InvalidRequest, NotFound, invalid_value
from gateway.pipeline.routing import decisions
from gateway.pipeline.routing.decisions import Feedback
from gateway.turns.ids import response_id

endpoints = Endpoints("turns", "Single turns, as long as the ledger keeps them; without any text.")

_MOST_READ = 5000
"""Most turns that one request reads."""
_PLACE = re.compile(r"(\d{8}) (\d{1,15}) (\d{1,15}) (\S+)", re.ASCII)


class TurnsQuery(Page, frozen=True):
    """Which turns."""

    since: FirstDay = msgspec.field(default=None, name="from")
    until: LastDay = msgspec.field(default=None, name="to")
    tenant: Annotated[Only | None, Meta(description="Only this tenant.")] = None
    key: Annotated[Only | None, Meta(description="Only this key, by its id.")] = None
    user: Annotated[Only | None, Meta(description="Only this user, by its id.")] = None
    model: Annotated[Only | None, Meta(description="Only this model.")] = None
    adapter: Annotated[Only | None, Meta(description="Only this adapter.")] = None
    tier: Annotated[Literal["small", "medium", "large"] | None, Meta(description="Only this tier.")] = None
    outcome: Annotated[Outcome | None, Meta(description="Only turns that ended so.")] = None
    cache: Annotated[Literal["hit", "miss", "bypass"] | None, Meta(description="Only this outcome of the caches.")] = (
        None
    )


class TurnPath(Input, frozen=True):
    turn: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,128}$", description="Id of its response or completion.")]


class LedgerTurn(Struct, frozen=True, kw_only=True):
    """One turn in the ledger."""

    turn: str
    at: Annotated[int, Meta(description="Time when it ended, in milliseconds since 1970.")]
    tenant: str
    key: str
    user: str | None
    model: str
    adapter: str | None
    tier: str
    outcome: Outcome
    cache: Literal["hit", "miss", "bypass"]
    cache_reason: str
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_microdollars: Annotated[int | None, Meta(description="Rounded up; null if the model had no price.")]
    milliseconds: Annotated[int | None, Meta(description="From the request to the end; null if it was not measured.")]
    first_token_ms: Annotated[int | None, Meta(description="From the request to the first token; null without one.")]
    queue_ms: Annotated[int | None, Meta(description="Part of it in the engine's queue; null without one.")]


class TurnList(Struct, frozen=True):
    data: list[LedgerTurn]
    next: str | None


class TurnDetails(Struct, frozen=True):
    """One turn with its decision and feedback."""

    turn: LedgerTurn
    decision: Annotated[
        DecisionState | None, Meta(description="Null if the request named its model, or the log has it no more.")
    ]
    feedback: list[Feedback]
    comment: Annotated[
        str | None,
        Meta(
            description="What was written beside the last rating. Null if nothing was, and for other tenants' admins."
        ),
    ]


@endpoints.get("/turns", access=Access.FILTERED, raises=[NotFound])
async def list_turns(call: Call, query: TurnsQuery) -> Answer[TurnList]:
    """List single turns, the newest first; those of their tenant for its admins.

    A page may hold fewer turns than asked for, even none, and still have a next one.
    """
    tenant = await tenant_of(call, query.tenant)
    asked, listing = _asked(query), f"turns:{tenant or ''}"
    found: list[LedgerTurn] = []
    looked_at = 0
    async for place, entry in recent.newest(call.gateway.redis, tenant, asked, _place(listing, query.cursor)):
        looked_at += 1
        if asked.holds(entry):
            found.append(_state(entry))
        if len(found) == query.limit or looked_at == _MOST_READ:
            return Answer(TurnList(found, cursors.encode(listing, _position(place))))
    return Answer(TurnList(found, None))


@endpoints.get("/turns/{turn}", access=Access.FILTERED)
async def show_turn(call: Call, path: TurnPath) -> Answer[TurnDetails]:
    """Show a turn, with the decision that it was routed by and what users thought of it."""
    id, redis = response_id(path.turn), call.gateway.redis
    for tenant in await tenants(redis, None if call.principal.operator else call.principal.tenant):
        began = call.gateway.turns.ids.issued(id, tenant)
        entry = None if began is None else await recent.find(redis, tenant, id, began)
        if began is not None and entry is not None:
            decision, feedback = await decisions.find(redis, tenant, id, began)
            own = tenant == call.principal.tenant
            comment = await call.gateway.comments.find(tenant, id) if own else None
            return Answer(
                TurnDetails(
                    turn=_state(entry),
                    decision=None if decision is None else decision_state(decision),
                    feedback=feedback,
                    comment=None if comment is None else comment.text,
                )
            )
    raise NotFound(f"no turn has the id {path.turn!r}, or it is no longer kept")


def _asked(query: TurnsQuery) -> TurnQuery:
    try:
        first, last = days(query.since, query.until)
        return TurnQuery(
            since=midnight(first),
            until=midnight(last) + datetime.timedelta(days=1),
            model=query.model,
            adapter=query.adapter,
            key=query.key,
            user=query.user,
            tier=query.tier,
            outcome=query.outcome,
            cache=query.cache,
        )
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"from, to: {error}", param="from", code="invalid_value") from None


def _position(place: TurnPlace) -> str:
    return " ".join(map(str, msgspec.structs.astuple(place)))


def _place(listing: str, cursor: str | None) -> TurnPlace | None:
    position = cursors.decode(listing, cursor)
    if not position:
        return None
    match = _PLACE.fullmatch(position)
    if match is None:
        raise invalid_value("cursor", "not one of this list")
    return TurnPlace(match[1], int(match[2]), int(match[3]), match[4])


def _state(entry: LedgerEntry) -> LedgerTurn:
    return LedgerTurn(
        turn=entry.turn,
        at=entry.at,
        tenant=entry.tenant,
        key=entry.key,
        user=entry.user,
        model=entry.model,
        adapter=entry.adapter,
        tier=entry.tier,
        outcome=entry.outcome,
        cache=entry.cache,
        cache_reason=entry.cache_reason,
        input_tokens=entry.input,
        cached_input_tokens=entry.cached,
        output_tokens=entry.output,
        cost_microdollars=None if entry.picodollars is None else rounded_up(entry.picodollars),
        milliseconds=entry.milliseconds,
        first_token_ms=entry.first_token_ms,
        queue_ms=entry.queue_ms,
    )
