"""Finds what needs attention: budgets mostly spent, canaries taken out, replicas lost, caches that serve no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from redis.asyncio import Redis

from cache.questions.store import read_evidence
from cache.semantic.evidence import PromiseStanding, standing
from gateway.billing.cost import PICODOLLARS_PER_MICRODOLLAR, dollars
from gateway.config.settings import SemanticCacheSettings
from gateway.engines.heartbeat import Overview, overview
from gateway.limits.standing import LimitStanding, standings
from gateway.limits.subjects import every_subject
from gateway.pipeline.routing import canaries
from gateway.records.directory import Key, Route, Tenant
from gateway.services import Gateway
from gateway.storage import presence

Level = Literal["notice", "warning", "critical"]
_BUDGETS = {"spend_per_day": "daily budget", "spend_per_month": "monthly budget"}
"""Limits that are budgets, and what people call them."""
_SIGNALS = {"error": "failures", "slow": "late first tokens", "poor": "empty answers"}
"""What a canary is taken out for, in words."""


class Alert(Struct, frozen=True, kw_only=True):
    """One thing that needs attention."""

    kind: Literal["budget", "canary_out", "replica_lost", "cache_tripped"]
    level: Level
    tenant: Annotated[str | None, Meta(description="Null: it concerns the whole installation.")] = None
    subject: Annotated[str, Meta(description="What it is about: `tenant`, `key:ci`, a route, a replica.")]
    limit: Annotated[str | None, Meta(description="Of a budget: field of the quota.")] = None
    share: Annotated[float | None, Meta(description="Of a budget: the part that is used or reserved.")] = None
    sentence: str


async def alerts(gateway: Gateway, tenant: Tenant | None) -> list[Alert]:
    """Return what needs attention, the most urgent first.

    Args:
        tenant: the tenant that it is about, with the budgets of its keys; None: all of them, and the installation.

    Raises:
        RedisError, OSError: Redis does not answer.
    """
    redis = gateway.redis
    names = {tenant.name: tenant} if tenant is not None else gateway.view.tenants()
    keys = [] if tenant is None else [key async for key in gateway.directory.every(Key, tenant=tenant.name)]
    subjects = {name: every_subject(gateway.settings.limits, each, keys) for name, each in names.items()}
    limits = await standings(redis, subjects, gateway.settings.limits.soft_limit)
    found = [alert for name, those in limits.items() for each in those for alert in budget(name, each)]
    found += await _tripped(redis, gateway.settings.semantic_cache, list(names))
    routes = [route for route in gateway.view.routes() if tenant is None or route.tenant == tenant.name]
    found += [alert for route in routes for alert in await _taken_out(redis, route)]
    if tenant is None:
        found += lost(overview(await presence.read(redis)))
    order: Sequence[Level] = ("critical", "warning", "notice")
    return sorted(found, key=lambda alert: order.index(alert.level))


def budget(tenant: str, standing: LimitStanding) -> list[Alert]:
    """Return an alert from 50 % of a budget on."""
    if standing.limit not in _BUDGETS or not standing.most:
        return []
    spent = standing.used + standing.held
    share = spent / standing.most
    if share < 0.5:
        return []
    level: Level = "critical" if share >= 1 else "warning" if share >= 0.8 else "notice"
    which = _BUDGETS[standing.limit]
    used, most = (dollars(amount * PICODOLLARS_PER_MICRODOLLAR) for amount in (spent, standing.most))
    if standing.subject == "tenant":
        sentence = f"{tenant} has used {share:.0%} of its {which}: ${used} of ${most}"
    else:
        sentence = f"{standing.subject} of {tenant} has used {share:.0%} of its {which}: ${used} of ${most}"
    return [
        Alert(
            kind="budget",
            level=level,
            tenant=tenant,
            subject=standing.subject,
            limit=standing.limit,
            share=round(share, 4),
            sentence=sentence,
        )
    ]


def lost(seen: Overview) -> list[Alert]:
    """Return an alert for each engine that a gateway cannot reach, or does not ask because it fails."""
    found = []
    for replica in seen.replicas:
        if not replica.up:
            sentence = f"the replica {replica.name} of {replica.model} does not answer"
            found.append(Alert(kind="replica_lost", level="critical", subject=replica.name, sentence=sentence))
        elif replica.breaker != "closed":
            sentence = f"the replica {replica.name} of {replica.model} fails and gets no turns for a while"
            found.append(Alert(kind="replica_lost", level="warning", subject=replica.name, sentence=sentence))
    return found


async def _taken_out(redis: Redis, route: Route) -> list[Alert]:
    if len(route.targets) < 2:
        return []
    return [
        Alert(
            kind="canary_out",
            level="warning",
            tenant=route.tenant,
            subject=route.name,
            sentence=f"the canary {standing.model} of {route.name} was taken out: {_SIGNALS[out.signal]}",
        )
        for standing in (await canaries.read(redis, route)).standings
        if (out := standing.taken_out) is not None
    ]


async def _tripped(redis: Redis, settings: SemanticCacheSettings, tenants: Sequence[str]) -> list[Alert]:
    promises = {tenant: promise for tenant in tenants if (promise := settings.promise_of(tenant))}
    return [
        Alert(
            kind="cache_tripped",
            level="warning",
            tenant=tenant,
            subject="semantic cache",
            sentence=f"the semantic cache of {tenant} gives no answers of one kind or more: too many would be wrong",
        )
        for tenant, evidence in (await read_evidence(redis, list(promises))).items()
        if any(standing(compared, promises[tenant]) is PromiseStanding.BROKEN for compared in evidence.bands)
    ]
