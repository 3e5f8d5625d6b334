"""Why `auto` went to a tier: logged decisions, and what would be decided for a text."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from gateway.admin.call import Access, Call
from gateway.admin.endpoints import records
from gateway.admin.endpoints.shapes import Only, Page, TenantPath
from gateway.admin.kit import cursors
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.billing.cost import TokenPrices, microdollars
from gateway.errors import NotFound, Unavailable, invalid_value
from gateway.pipeline.routing import decisions, explaining, judge_days
from gateway.pipeline.routing.decisions import LoggedDecision
from gateway.pipeline.routing.judge_days import JudgeDay
from gateway.pipeline.routing.replaying import AtQuality, Replay, replay
from gateway.pipeline.routing.tiers import Tiers
from router.complexity import Reason
from router.tier import TierChoice, ValueSource, sentences

endpoints = Endpoints("routing", "Why requests that leave the model open go to a tier.")

Quality = Annotated[int, Meta(ge=0, le=100)]
_PLACE = re.compile(r"\d{1,15}-\d{1,15}", re.ASCII)


Otherwise = Annotated[
    Quality | None, Meta(description="Also say what this position of the quality knob would have chosen.")
]


class DecisionsQuery(Page, frozen=True):
    """Which decisions."""

    quality: Otherwise = None


class ReplayQuery(Input, frozen=True):
    """Which decisions are summed."""

    tenant: Annotated[Only | None, Meta(description="Only those of this tenant.")] = None
    decisions: Annotated[int, Meta(ge=1, le=5000, description="How many at most, the newest.")] = 1000
    quality: Otherwise = None


class ByTier(Struct, frozen=True):
    """A number for each tier."""

    small: float
    medium: float
    large: float


class DecisionState(Struct, frozen=True, kw_only=True):
    """One logged decision, and how its turn ended."""

    response: str
    at: Annotated[int, Meta(description="Time when the response ended, in milliseconds since 1970.")]
    tier: Annotated[str, Meta(description="Tier that answered.")]
    chosen: Annotated[str, Meta(description="Tier that was chosen.")]
    source: ValueSource
    values: ByTier
    costs: ByTier
    utilities: Annotated[ByTier, Meta(description="Value less price of cost and delay: the highest is chosen.")]
    delays: ByTier
    price: float
    complexity: float
    propensity: float
    reasons: list[str]
    features: dict[str, float]
    model: str
    outcome: str
    input_tokens: int
    output_tokens: int
    reproducible: Annotated[bool, Meta(description="Whether the logged values lead to the same decision again.")]
    otherwise: Annotated[str | None, Meta(description="Tier that `quality` would have chosen, if that was given.")]


class DecisionList(Struct, frozen=True):
    data: list[DecisionState]
    next: str | None


class ExplainedText(Input, frozen=True):
    """A text as a first message."""

    prompt: Annotated[str, Meta(min_length=1, max_length=200_000, description="It is read and kept nowhere.")]
    quality: Annotated[Quality | None, Meta(description="Position of the quality knob; null: as configured.")] = None


class RouteExplanation(Struct, frozen=True, kw_only=True):
    """The tier that would be chosen, and why."""

    tier: str
    source: ValueSource
    values: ByTier
    costs: ByTier
    utilities: ByTier
    price: float
    complexity: float
    strangeness: Annotated[float | None, Meta(description="Up to 1 is familiar; null if the model is off.")]
    reasons: list[str]
    complexity_reasons: list[Reason]
    features: dict[str, float]
    model: str
    choice: TierChoice


class JudgeDayState(Struct, frozen=True, kw_only=True):
    """What the judge did on a day of UTC, for all gateways."""

    day: Annotated[str, Meta(description="Such as 2026-11-26.")]
    sampled: Annotated[int, Meta(description="Pairs of answers that were to be judged.")]
    judged: Annotated[dict[str, int], Meta(description="Of these, those that were, by opinion.")]
    refused: Annotated[dict[str, int], Meta(description="Those that were not, by reason.")]
    spent_microdollars: Annotated[int, Meta(description="With what is reserved for what is being judged.")]


class JudgeState(Struct, frozen=True, kw_only=True):
    """The judge as it is configured, and its last days."""

    pool: Annotated[str | None, Meta(description="Pool whose model judges; null: nobody does.")]
    share: float
    dollars_per_day: float
    data: Annotated[list[JudgeDayState], Meta(description="The newest first; today has begun at midnight of UTC.")]


@endpoints.get("/tenants/{tenant}/decisions", access=Access.TENANT)
async def list_decisions(call: Call, path: TenantPath, query: DecisionsQuery) -> Answer[DecisionList]:
    """List the newest decisions of a tenant's requests for `auto`, as long as the log keeps them."""
    listing = f"decisions:{path.tenant}"
    before = cursors.decode(listing, query.cursor)
    if before and not _PLACE.fullmatch(before):
        raise invalid_value("cursor", "not one of this list")
    otherwise = await _otherwise(call, query.quality)
    try:
        found = await decisions.read_back(call.gateway.redis, path.tenant, before, query.limit + 1)
    except ValueError:
        raise Unavailable("the log of decisions holds something else") from None
    page = found[: query.limit]
    more = cursors.encode(listing, page[-1][0]) if len(found) > query.limit else None
    return Answer(DecisionList([decision_state(each, otherwise) for _, each in page], more))


@endpoints.get("/route/replay", access=Access.FILTERED, raises=[NotFound])
async def replay_decisions(call: Call, query: ReplayQuery) -> Answer[Replay]:
    """Sum the newest logged decisions by tier and reason, and at another position of the quality knob."""
    gateway = call.gateway
    tenant = await records.tenant_of(call, query.tenant)
    names = list(gateway.view.tenants()) if tenant is None else [tenant]
    try:
        found = await decisions.newest(gateway.redis, names, query.decisions)
    except ValueError:
        raise Unavailable("the log of decisions holds something else") from None
    otherwise = await _otherwise(call, query.quality)
    priced = {pool.tier: gateway.view.price(pool.name) for pool in reversed(gateway.engines.pools)}
    prices: dict[str, TokenPrices] = {tier: each for tier, each in priced.items() if each is not None}
    return Answer(await asyncio.to_thread(replay, found, otherwise, prices))


@endpoints.get("/route/judge", access=Access.OPERATOR)
async def show_judge(call: Call) -> Answer[JudgeState]:
    """Show what the judge did in the last seven days, and what it cost."""
    judge = call.gateway.settings.judge
    days = [_judge_day(each) for each in await judge_days.read_days(call.gateway.redis)]
    return Answer(JudgeState(pool=judge.pool, share=judge.share, dollars_per_day=judge.dollars_per_day, data=days))


@endpoints.post("/route/explain", access=Access.FILTERED, example={"prompt": "Prove that there are infinitely many."})
async def explain_route(call: Call, body: ExplainedText) -> Answer[RouteExplanation]:
    """Say which tier `auto` would choose for a text as a first message, and why. No engine is asked."""
    found = explaining.explain(await _tiers(call), body.prompt, body.quality)
    choice, prediction = found.choice, found.choice.outlook.prediction
    return Answer(
        RouteExplanation(
            tier=choice.tier,
            source=choice.outlook.source,
            values=ByTier(*choice.values),
            costs=ByTier(*choice.costs),
            utilities=ByTier(*choice.utilities),
            price=choice.price,
            complexity=choice.outlook.complexity,
            strangeness=None if prediction is None else prediction.strangeness,
            reasons=list(sentences(choice)),
            complexity_reasons=list(found.complexity.reasons),
            features=found.features,
            model=found.model,
            choice=choice,
        )
    )


def decision_state(logged: LoggedDecision, otherwise: AtQuality | None = None) -> DecisionState:
    """Return a decision as it is shown. Args: otherwise: how it is made at another position of the knob."""
    choice = logged.choice
    return DecisionState(
        response=logged.response,
        at=logged.at,
        tier=logged.tier,
        chosen=choice.tier,
        source=choice.outlook.source,
        values=ByTier(*choice.values),
        costs=ByTier(*choice.costs),
        utilities=ByTier(*choice.utilities),
        delays=ByTier(*choice.delays),
        price=choice.price,
        complexity=choice.outlook.complexity,
        propensity=choice.propensity,
        reasons=list(sentences(choice)),
        features=logged.features,
        model=logged.model,
        outcome=logged.outcome,
        input_tokens=logged.input_tokens,
        output_tokens=logged.output_tokens,
        reproducible=logged.reproducible,
        otherwise=otherwise(choice) if otherwise else None,
    )


def _judge_day(found: JudgeDay) -> JudgeDayState:
    judged = {outcome: number for outcome, number in found.pairs.items() if outcome in judge_days.OPINIONS}
    return JudgeDayState(
        day=found.day,
        sampled=sum(found.pairs.values()),
        judged=judged,
        refused={outcome: number for outcome, number in found.pairs.items() if outcome not in judged},
        spent_microdollars=microdollars(found.spent),
    )


async def _otherwise(call: Call, quality: int | None) -> AtQuality | None:
    """Return how decisions are made at a position of the knob; None if none is given."""
    return None if quality is None else partial((await _tiers(call)).at_quality, quality)


async def _tiers(call: Call) -> Tiers:
    """Return the router of the configuration in force, with the budget's present price and without the embedder."""
    return await asyncio.to_thread(Tiers, call.gateway.settings, call.gateway.memory, None)
