"""Statistics of the caches, and forgetting what they hold."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cache.statistics import read
from gateway.admin.endpoints import Access, Answer, Call, Endpoints, Input
from gateway.admin.shapes import TenantPath

endpoints = Endpoints("cache", "The response cache and the engines' prefix caches.")


class CachePeriod(Input, frozen=True):
    hours: Annotated[int, Meta(ge=1, le=840, description="Hours back from now, this one included.")] = 24


class CacheCounters(Struct, frozen=True):
    """Counters of the period; docs/caching.md says what each counts."""

    tenant: str
    hours: int
    counters: dict[str, int]
    exact_hit_rate: float | None
    """Answers found, of those looked up; null if none was."""
    prefix_hit_rate: float | None
    """Prompt tokens found in engines' prefix caches, of those sent; null if none was."""


class CacheStatistics(Struct, frozen=True):
    data: list[CacheCounters]


@endpoints.get("/cache", access=Access.OPERATOR)
async def list_statistics(call: Call, query: CachePeriod) -> Answer[CacheStatistics]:
    """Cache statistics of all tenants that have any."""
    found = await read(call.gateway.redis, hours=query.hours)
    return Answer(CacheStatistics([_counters(name, query.hours, sums) for name, sums in sorted(found.items())]))


@endpoints.get("/tenants/{tenant}/cache", access=Access.TENANT)
async def show_statistics(call: Call, path: TenantPath, query: CachePeriod) -> Answer[CacheCounters]:
    """Cache statistics of one tenant."""
    found = await read(call.gateway.redis, hours=query.hours, tenant=path.tenant)
    return Answer(_counters(path.tenant, query.hours, found[path.tenant]))


@endpoints.post("/tenants/{tenant}/cache/invalidate", access=Access.TENANT, status=204)
async def invalidate_cache(call: Call, path: TenantPath) -> Answer[None]:
    """Forget all stored answers of a tenant, at once and on every gateway."""
    replayed = await call.note("cache.invalidate", path.tenant, path.tenant, once=call.once(None))
    # Also if it was noted before: then it may not have been done, and twice does no harm.
    await call.admin.cache.invalidate(path.tenant)
    return Answer(None, replayed=replayed)


def _counters(tenant: str, hours: int, sums: dict[str, int]) -> CacheCounters:
    return CacheCounters(
        tenant,
        hours,
        dict(sorted(sums.items())),
        _rate(sums.get("exact_hit", 0), sums.get("exact_hit", 0) + sums.get("exact_miss", 0)),
        _rate(sums.get("prefix_tokens_hit", 0), sums.get("prompt_tokens", 0)),
    )


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None
