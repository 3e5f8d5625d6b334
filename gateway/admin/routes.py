"""Public names whose requests are shared among models and adapters, such as canaries."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from redis.exceptions import RedisError

from gateway.admin import records, shapes
from gateway.admin.endpoints import Access, Answer, Call, Endpoints
from gateway.admin.shapes import Page, PublicNamePath
from gateway.canaries import Standing, standings
from gateway.directory.audit_log import unavailable
from gateway.directory.records import Route
from gateway.errors import Conflict

endpoints = Endpoints("routes", "Public names whose requests are shared among models and adapters, such as canaries.")

NewRoute = shapes.creation("NewRoute", Route, instead={"name": shapes.PublicName})
RouteReplacement = shapes.creation("RouteReplacement", Route, without=["name"])
RouteState = shapes.state("RouteState", Route)

_TARGETS = [{"model": "llama-8b", "weight": 95}, {"model": "llama-8b-next", "weight": 5}]


class Counted(Struct, frozen=True):
    """Conversations in which one thing went wrong."""

    stable: int
    canary: int


class TrialState(Struct, frozen=True):
    """A canary beside the stable target, since the route was last changed."""

    model: str
    weight: int
    """0: it is not on trial, or was taken out."""
    turns: int
    stable_turns: int
    error: Counted
    """Answered with an error of ours."""
    slow: Counted
    """First token later than the route's `slow_seconds`."""
    poor: Counted
    """Empty answers."""
    evidence: float
    """How many times likelier this is if the canary is worse."""
    taken_out_from: float
    """Evidence that takes it out."""


class TrialList(Struct, frozen=True):
    data: list[TrialState]


class RouteList(Struct, frozen=True):
    data: list[RouteState]  # type: ignore[valid-type]
    next: str | None


@endpoints.get("/routes", access=Access.OPERATOR)
async def list_routes(call: Call, query: Page) -> Answer[RouteList]:
    """All routes."""
    return Answer(RouteList(*await records.page_of(call, Route, query, RouteState)))


@endpoints.post(
    "/routes",
    access=Access.OPERATOR,
    status=201,
    located=True,
    versioned=True,
    raises=[Conflict],
    body_type=NewRoute,
    example={
        "name": "assistant",
        "targets": _TARGETS,
    },
)
async def create_route(call: Call, body: Any) -> Answer[RouteState]:  # type: ignore[valid-type]
    """Make a route."""
    route = Route(**msgspec.structs.asdict(body))
    return await records.create(call, route, RouteState, f"/routes/{route.name}")


@endpoints.get("/routes/{public_name}", access=Access.OPERATOR, versioned=True)
async def show_route(call: Call, path: PublicNamePath) -> Answer[RouteState]:  # type: ignore[valid-type]
    """One route."""
    return records.answer(await records.find(call, Route, path.public_name), RouteState)


@endpoints.get("/trials/{public_name}", access=Access.OPERATOR)
async def list_trials(call: Call, path: PublicNamePath) -> Answer[TrialList]:
    """How a route's canaries do beside its first target: all gateways' turns, counted while both have a weight."""
    route = await records.find(call, Route, path.public_name)
    try:
        found = await standings(call.gateway.redis, route)
    except (RedisError, OSError) as error:
        raise unavailable(error) from None
    return Answer(TrialList([_trial(each) for each in found]))


def _trial(standing: Standing) -> TrialState:
    kinds = {signal.value: Counted(one.stable, one.canary) for signal, one in standing.failures.items()}
    return TrialState(
        model=standing.model,
        weight=standing.weight,
        turns=standing.turns,
        stable_turns=standing.stable_turns,
        **kinds,
        evidence=round(standing.verdict.evidence, 3),
        taken_out_from=standing.verdict.threshold,
    )


@endpoints.put(
    "/routes/{public_name}",
    access=Access.OPERATOR,
    versioned=True,
    raises=[Conflict],
    body_type=RouteReplacement,
    example={"targets": _TARGETS},
)
async def replace_route(call: Call, path: PublicNamePath, body: Any) -> Answer[RouteState]:  # type: ignore[valid-type]
    """Replace a route; fields that are left out take their defaults."""
    route = await records.find(call, Route, path.public_name)
    return await records.change(call, route, msgspec.structs.asdict(body), RouteState)


@endpoints.delete("/routes/{public_name}", access=Access.OPERATOR, versioned=True, raises=[Conflict])
async def delete_route(call: Call, path: PublicNamePath) -> Answer[None]:
    """Delete a route."""
    return await records.delete(call, await records.find(call, Route, path.public_name))
