"""Routes: public names whose requests are shared among models and adapters, such as canaries.

A tenant's admins make routes of their own, among the models that their tenant may use. Operators see all of them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.access.directory.audit_log import directory_needed
from gateway.admin.call import Access, Call
from gateway.admin.endpoints import records, shapes
from gateway.admin.endpoints.shapes import Page, PathName, PublicName
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.errors import Conflict, Forbidden, InvalidRequest, NotFound, invalid_value
from gateway.pipeline.routing.canaries import Standing, TakenOut, read
from gateway.pipeline.routing.shadows import Comparison
from gateway.records.directory import Route, Tenant, decode, encode
from router.canary import CanarySignal
from router.route import AUTO

endpoints = Endpoints("routes", "Public names whose requests are shared among models and adapters, such as canaries.")

NewRoute = shapes.creation("NewRoute", Route, instead={"name": shapes.PublicName})
RouteReplacement = shapes.creation("RouteReplacement", Route, without=["name", "tenant"])
RouteState = shapes.state("RouteState", Route)

_NAMED = 20
"""Most names that an error message lists."""
_TARGETS = [{"model": "llama-8b", "weight": 95}, {"model": "llama-8b-next", "weight": 5}]


class RoutePath(Input, frozen=True):
    route: Annotated[PublicName, Meta(description="As clients write it.")]


class RoutesPage(Page, frozen=True):
    tenant: Annotated[PathName | None, Meta(description="Only routes of this tenant.")] = None


class Counted(Struct, frozen=True):
    """Conversations in which one thing went wrong."""

    stable: int
    canary: int


class OutState(Struct, frozen=True):
    """Why a canary was taken out."""

    at: int
    """Unix time at which it was."""
    signal: CanarySignal
    turns: int
    stable_turns: int
    failures: Counted
    """Conversations that went wrong in that way."""
    evidence: float


class TrialState(Struct, frozen=True):
    """A canary compared with the stable target since the route was last changed."""

    model: str
    weight: int
    """Its share of conversations; 0: it is not on trial, or was taken out."""
    turns: int
    stable_turns: int
    error: Counted
    """Conversations answered with an error of ours."""
    slow: Counted
    """Conversations whose first token came later than the route's `slow_seconds`."""
    poor: Counted
    """Conversations with an empty answer."""
    evidence: float
    """How many times likelier these counts are if the canary is worse."""
    taken_out_from: float
    """Evidence from which the canary is taken out."""
    taken_out: OutState | None
    """Why it was taken out; null if it was not, or somebody has changed the route since."""


class ShadowState(Struct, frozen=True):
    """Copies of turns compared with the turns themselves since the route was last changed."""

    model: str
    percent: int
    copies: int
    """Copies that were not given up."""
    given_up: int
    """Copies given up because their engine was busy or too many ran."""
    errors: Counted
    """Turns and copies that were not answered."""
    evidence: float
    """How many times likelier the errors are if copies fail more often."""
    compared: int
    """Pairs of answers that both ended by themselves."""
    agreement: float | None
    """Part of these pairs that says the same. Random sampling makes it smaller: compare at temperature 0."""
    first_token_ms: float | None
    """Mean time to first token of the copies, without the wait in the engine's queue."""
    stable_first_token_ms: float | None
    """Mean time to first token of the turns that were copied."""


class TrialList(Struct, frozen=True):
    data: list[TrialState]
    shadow: ShadowState | None


class RouteList(Struct, frozen=True):
    data: list[RouteState]  # type: ignore[valid-type]
    next: str | None


@endpoints.get("/routes", access=Access.FILTERED, raises=[NotFound])
async def list_routes(call: Call, query: RoutesPage) -> Answer[RouteList]:
    """List all routes, or those of a tenant."""
    tenant = await records.tenant_of(call, query.tenant)
    return Answer(RouteList(*await records.page_of(call, Route, query, RouteState, tenant=tenant)))


@endpoints.create(
    "/routes",
    access=Access.FILTERED,
    raises=[Conflict],
    body_type=NewRoute,
    example={
        "name": "assistant",
        "targets": _TARGETS,
    },
)
async def create_route(call: Call, body: Any) -> Answer[RouteState]:  # type: ignore[valid-type]
    """Make a route. An admin's is for its own tenant."""
    route = Route(**msgspec.structs.asdict(body))
    own = call.principal.tenant
    if not call.principal.operator:
        if not route.name.startswith(f"{own}:"):
            # Names are shared by all tenants: so none can take another's, or learn that it exists.
            raise Forbidden(f"name: must begin with {own}:, such as {own}:{route.name[:32]}", param="name")
        if route.tenant not in (None, own):
            raise Forbidden("tenant: only operators may make routes for others", param="tenant")
        route = msgspec.structs.replace(route, tenant=own)
    await _check(call, route, None)
    return await records.create(call, route, RouteState, f"/routes/{route.name}")


@endpoints.get("/routes/{route:path}", access=Access.FILTERED, versioned=True)
async def show_route(call: Call, path: RoutePath) -> Answer[RouteState]:  # type: ignore[valid-type]
    """Show a route."""
    return records.answer(await _found(call, path), RouteState)


@endpoints.get("/trials/{route:path}", access=Access.FILTERED)
async def list_trials(call: Call, path: RoutePath) -> Answer[TrialList]:
    """Compare a route's canaries and shadow with its first target, by the counts of all gateways."""
    route = await _found(call, path)
    with directory_needed():
        found = await read(call.gateway.redis, route)
    shadow = None if found.shadow is None else _shadow(route, found.shadow)
    return Answer(TrialList([_trial(each) for each in found.standings], shadow))


def _shadow(route: Route, found: Comparison) -> ShadowState:
    assert route.shadow is not None
    return ShadowState(
        model=route.shadow.model,
        percent=route.shadow.percent,
        copies=found.copies,
        given_up=found.given_up,
        errors=Counted(found.stable_errors, found.errors),
        evidence=round(found.evidence, 3),
        compared=found.compared,
        agreement=found.agreed / found.compared if found.compared else None,
        first_token_ms=found.first_ms,
        stable_first_token_ms=found.stable_first_ms,
    )


async def _found(call: Call, path: RoutePath) -> Route:
    """
    Raises:
        NotFound: there is no such route, or the caller is no operator and it is not its tenant's.
    """
    own = None if call.principal.operator else call.principal.tenant
    return await records.find(call, Route, path.route, tenant=own)


async def _check(call: Call, route: Route, before: Route | None) -> None:
    """
    Args:
        before: the route in whose place it comes.

    Raises:
        InvalidRequest: a target does not exist, or not for the route's tenant: clients would be told turn by turn.
        Forbidden: the caller is no operator, and wants copies, which nobody pays for.
    """
    if not call.principal.operator and route.shadow not in (None, before and before.shadow):
        raise Forbidden("shadow: only operators may set it", param="shadow")
    models = [target.model for target in route.targets]
    if len(set(models)) < len(models):
        raise invalid_value("targets", "a model is named twice; add up its weights")
    known = await _open_to(call, route.tenant)
    wanted = {f"targets[{index}].model": model for index, model in enumerate(models)}
    if route.shadow is not None:
        wanted["shadow.model"] = route.shadow.model
    for field, model in wanted.items():
        if model not in known or (field == "shadow.model" and model == AUTO):
            more = ", ..." if len(known) > _NAMED else ""
            raise InvalidRequest(
                f"{field}: no model or adapter is named {model!r}; there are {', '.join(known[:_NAMED])}{more}",
                param=field,
                code="invalid_value",
            )


async def _open_to(call: Call, name: str | None) -> list[str]:
    """Return the models and adapters that a route may lead to.

    Args:
        name: of the tenant whose it is; None: it is everybody's.

    Raises:
        InvalidRequest: there is no such tenant.
    """
    gateway = call.gateway
    pools = dict.fromkeys(name for pool in gateway.engines.pools for name in (pool.tier, pool.name))
    if name is None:
        return [AUTO, *pools, *sorted(gateway.adapters.names)]
    tenant = await gateway.directory.get(Tenant, name)
    if tenant is None:
        raise invalid_value("tenant", f"no tenant {name!r}")
    return list(filter(tenant.may_use, [AUTO, *pools, *sorted(gateway.adapters.visible(name))]))


def _trial(standing: Standing) -> TrialState:
    reason = standing.taken_out
    kinds = {signal.value: Counted(one.stable, one.canary) for signal, one in standing.failures.items()}
    return TrialState(
        model=standing.model,
        weight=standing.weight,
        turns=standing.turns,
        stable_turns=standing.stable_turns,
        **kinds,
        evidence=round(standing.verdict.evidence, 3),
        taken_out_from=standing.verdict.threshold,
        taken_out=None if reason is None else _out(reason),
    )


def _out(reason: TakenOut) -> OutState:
    counted = Counted(reason.failures.stable, reason.failures.canary)
    return OutState(reason.at, reason.signal, reason.turns, reason.stable_turns, counted, reason.evidence)


@endpoints.put(
    "/routes/{route:path}",
    access=Access.FILTERED,
    versioned=True,
    raises=[Conflict],
    body_type=RouteReplacement,
    example={"targets": _TARGETS},
)
async def replace_route(call: Call, path: RoutePath, body: Any) -> Answer[RouteState]:  # type: ignore[valid-type]
    """Replace a route; fields that are left out take their defaults."""
    route = await _found(call, path)
    fields = msgspec.structs.asdict(body)
    # As it would be stored: in a request, targets and shadow have types of their own, which are equal to no others.
    replaced = decode(Route, encode(msgspec.structs.replace(route, **fields)))
    await _check(call, replaced, route)
    return await records.change(call, route, fields, RouteState)


@endpoints.delete("/routes/{route:path}", access=Access.FILTERED, versioned=True, raises=[Conflict])
async def delete_route(call: Call, path: RoutePath) -> Answer[None]:
    """Delete a route."""
    return await records.delete(call, await _found(call, path))
