"""Statistics of the caches, and the removal of stored answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from cache.inspection import Holding, holding
from cache.questions.corrections import Corrections
from cache.questions.store import read_evidence
from cache.response import ALL
from cache.semantic.evidence import BandReport, report
from cache.semantic.model import shipped
from cache.statistics import read, read_by_hour
from gateway.admin.call import Access, Call
from gateway.admin.endpoints.shapes import TenantPath
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.billing.entry import begin_of
from gateway.errors import Conflict, NotFound
from gateway.services import Gateway
from gateway.turns.ids import response_id

_SEMANTIC_LOOK_UPS = ("semantic_hit", "semantic_miss", "semantic_reject", "semantic_explore")
"""Counters of which each look-up in the semantic cache adds to one, with a reason or without."""

endpoints = Endpoints("cache", "The response cache, the semantic cache and the engines' prefix caches.")


class CachePeriod(Input, frozen=True):
    hours: Annotated[int, Meta(ge=1, le=840, description="Hours back from now, this one included.")] = 24


class AnswersShown(Input, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=200, description="Most answers, newest first.")] = 50


class AnswerPath(TenantPath, frozen=True):
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="Identity of the request that was answered.")]


class Revocation(Input, frozen=True):
    answer: Annotated[
        str,
        Meta(
            pattern="^(?:[0-9a-f]{32}|(?:resp_|chatcmpl-|cmpl-)[0-9a-f]{48})$",
            description="Identity of a stored answer, or id of a response that was answered from a similar question "
            "within the last day.",
        ),
    ]


class Invalidation(Input, frozen=True):
    tag: Annotated[
        Annotated[str, Meta(pattern="^[A-Za-z0-9_.:/-]{1,64}$")] | None,
        Meta(description="Forget only answers with this tag."),
    ] = None


class CacheSums(Struct, frozen=True, kw_only=True):
    """Counters of some time; docs/caching.md says what each counts."""

    counters: dict[str, int]
    exact_hit_rate: float | None
    """Answers found or joined, of those looked up; null if none was."""
    semantic_hit_rate: float | None
    """Answers to similar questions served, of those looked up; null if none was."""
    prefix_hit_rate: float | None
    """Prompt tokens found in engines' prefix caches, of those sent; null if none was."""


class CacheCounters(CacheSums, frozen=True, kw_only=True):
    """Counters of a tenant."""

    tenant: str
    hours: int
    semantic: list[BandReport]
    """What comparisons show of answers to similar questions, the surest ones first; empty if the semantic cache is off
    for the tenant."""


class CacheStatistics(Struct, frozen=True):
    data: list[CacheCounters]


class CacheHour(CacheSums, frozen=True, kw_only=True):
    """Counters of one hour in which something was counted."""

    hour: Annotated[str, Meta(description="Hour of UTC, such as 2026-11-22T14.")]


class SimilarAnswersState(Struct, frozen=True, kw_only=True):
    """How many answers to similar questions are wrong, beside how many may be."""

    promise: Annotated[float, Meta(description="Highest share that may be wrong, `max_wrong_hits`.")]
    bands: Annotated[list[BandReport], Meta(description="What comparisons show, of the surest answers first.")]


class CacheHours(Struct, frozen=True, kw_only=True):
    data: list[CacheHour]
    total: CacheSums
    semantic: Annotated[
        SimilarAnswersState | None,
        Meta(description="Null of all tenants together, and where the semantic cache is off."),
    ]


@endpoints.get("/cache", access=Access.OPERATOR)
async def list_statistics(call: Call, query: CachePeriod) -> Answer[CacheStatistics]:
    """Show cache statistics of all tenants that have any."""
    found = await read(call.gateway.redis, hours=query.hours)
    return Answer(CacheStatistics(await _counters(call.gateway, query.hours, dict(sorted(found.items())))))


@endpoints.get("/tenants/{tenant}/cache", access=Access.TENANT)
async def show_statistics(call: Call, path: TenantPath, query: CachePeriod) -> Answer[CacheCounters]:
    """Show cache statistics of a tenant."""
    found = await read(call.gateway.redis, hours=query.hours, tenant=path.tenant)
    (counters,) = await _counters(call.gateway, query.hours, found)
    return Answer(counters)


@endpoints.get("/cache/hours", access=Access.OPERATOR)
async def list_hourly_statistics(call: Call, query: CachePeriod) -> Answer[CacheHours]:
    """Show cache statistics of all tenants together by hour, the oldest first."""
    return await _hours(call, query, None)


@endpoints.get("/tenants/{tenant}/cache/hours", access=Access.TENANT)
async def show_hourly_statistics(call: Call, path: TenantPath, query: CachePeriod) -> Answer[CacheHours]:
    """Show cache statistics of a tenant by hour, the oldest first."""
    return await _hours(call, query, path.tenant)


@endpoints.get("/tenants/{tenant}/cache/answers", access=Access.TENANT)
async def list_stored_answers(call: Call, path: TenantPath, query: AnswersShown) -> Answer[Holding]:
    """List the stored answers of a tenant, without their texts."""
    return Answer(await holding(call.gateway.redis, path.tenant, limit=query.limit))


@endpoints.delete("/tenants/{tenant}/cache/answers/{digest}", access=Access.TENANT, raises=[NotFound, Conflict])
async def delete_stored_answer(call: Call, path: AnswerPath) -> Answer[None]:
    """Delete a stored answer, at once and on every gateway."""
    replayed = await call.note("cache.delete", path.digest, path.tenant, once=call.once(None))
    if not await call.gateway.response_cache.remove(path.tenant, path.digest) and not replayed:
        raise NotFound(f"digest: no stored answer {path.digest}")
    return Answer(None, replayed=replayed)


@endpoints.post("/tenants/{tenant}/cache/revoke", access=Access.TENANT, status=204, raises=[NotFound, Conflict])
async def revoke_answer(call: Call, path: TenantPath, query: Revocation) -> Answer[None]:
    """Never give a stored answer to another question again; its own question keeps it."""
    replayed = await call.note("cache.revoke", query.answer, path.tenant, once=call.once(query))
    if not await Corrections(call.gateway.redis).revoke(path.tenant, response_id(query.answer)) and not replayed:
        raise NotFound(f"answer: the semantic cache knows no answer {query.answer}")
    return Answer(None, replayed=replayed)


@endpoints.post("/tenants/{tenant}/cache/invalidate", access=Access.TENANT, status=204, raises=[Conflict])
async def invalidate_cache(call: Call, path: TenantPath, query: Invalidation) -> Answer[None]:
    """Delete all stored answers of a tenant, or those with a tag, at once and on every gateway."""
    changes = {} if query.tag is None else {"tag": [None, query.tag]}
    replayed = await call.note("cache.invalidate", path.tenant, path.tenant, changes=changes, once=call.once(query))
    # Also if an earlier attempt is in the log: it may have failed after that, and twice does no harm.
    await call.gateway.response_cache.invalidate(path.tenant, query.tag or ALL)
    return Answer(None, replayed=replayed)


async def _hours(call: Call, query: CachePeriod, tenant: str | None) -> Answer[CacheHours]:
    found = await read_by_hour(call.gateway.redis, hours=query.hours, tenant=tenant)
    total = Counter[str]()
    for counters in found.values():
        total.update(counters)
    return Answer(
        CacheHours(
            data=[
                CacheHour(hour=begin_of(hour).strftime("%Y-%m-%dT%H"), **_sums(counters))
                for hour, counters in found.items()
            ],
            total=CacheSums(**_sums(total)),
            semantic=None if tenant is None else await _similar(call, tenant),
        )
    )


async def _similar(call: Call, tenant: str) -> SimilarAnswersState | None:
    promise = call.gateway.settings.semantic_cache.promise_of(tenant)
    if not promise:
        return None
    evidence = (await read_evidence(call.gateway.redis, [tenant]))[tenant]
    return SimilarAnswersState(promise=promise, bands=report(evidence, shipped().bands, promise))


async def _counters(gateway: Gateway, hours: int, found: Mapping[str, Mapping[str, int]]) -> list[CacheCounters]:
    evidence = await read_evidence(gateway.redis, list(found))
    bounds, counters = shipped().bands, []
    for tenant, sums in found.items():
        promise = gateway.settings.semantic_cache.promise_of(tenant)
        bands = report(evidence[tenant], bounds, promise) if promise else []
        counters.append(CacheCounters(tenant=tenant, hours=hours, **_sums(sums), semantic=bands))
    return counters


def _sums(counters: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of `CacheSums`."""
    exact = counters.get("exact_hit", 0) + counters.get("exact_join", 0)
    looked_up = sum(amount for name, amount in counters.items() if name.partition(".")[0] in _SEMANTIC_LOOK_UPS)
    return {
        "counters": dict(sorted(counters.items())),
        "exact_hit_rate": _rate(exact, exact + counters.get("exact_miss", 0)),
        "semantic_hit_rate": _rate(counters.get("semantic_hit", 0), looked_up),
        "prefix_hit_rate": _rate(counters.get("prefix_tokens_hit", 0), counters.get("prompt_tokens", 0)),
    }


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None
