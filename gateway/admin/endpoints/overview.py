"""The figures of a period beside those of the period before, and what needs attention: one request for a first page."""

from __future__ import annotations

import datetime
import math
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from redis.asyncio import Redis

from gateway.admin.alerts import Alert, alerts
from gateway.admin.call import Access, Call
from gateway.admin.endpoints import records
from gateway.admin.endpoints.shapes import Only
from gateway.admin.endpoints.usage import UsageRow, UsageSums, usage_row
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.billing import recent
from gateway.billing.recent import TurnQuery
from gateway.billing.report import By, ReportQuery, ReportRow, current_hour, report, shown, total
from gateway.errors import NotFound
from gateway.records.directory import Tenant

endpoints = Endpoints("overview", "The figures of a period, and what needs attention.")

_HOURLY = 72
"""Longest period in hours that is divided into hours, not days."""
_MOST_SAMPLED = 5000
"""Most single turns of a period that errors and times are taken from."""
_ERRORS = ("failed", "lost")


class AlertsQuery(Input, frozen=True):
    tenant: Annotated[Only | None, Meta(description="Only this tenant.")] = None


class OverviewQuery(AlertsQuery, frozen=True):
    """Which period."""

    hours: Annotated[int, Meta(ge=1, le=720, description="Hours back from now, this one included.")] = 24


class FirstTokenTimes(Struct, frozen=True):
    """Milliseconds that so many percent of turns did not exceed."""

    p50: float
    p95: float


class PeriodFigures(UsageSums, frozen=True, kw_only=True):
    """What was done in a period. Rates are null where nothing was counted."""

    hit_rate: Annotated[float | None, Meta(description="Turns that the response cache answered, of all.")]
    prefix_hit_rate: Annotated[float | None, Meta(description="Prompt tokens found in prefix caches, of all.")]
    sampled_turns: Annotated[int, Meta(description="The newest turns, 5,000 at most: the next three are theirs.")]
    errors: Annotated[int, Meta(description="Turns that failed, or whose gateway died.")]
    error_rate: float | None
    first_token_ms: FirstTokenTimes | None


class OverviewState(Struct, frozen=True, kw_only=True):
    """A period beside the period of equal length before."""

    hours: int
    since: Annotated[str, Meta(description="First hour, in UTC.")] = msgspec.field(name="from")
    until: Annotated[str, Meta(description="End, not included: the hour after this one.")] = msgspec.field(name="to")
    tenant: str | None
    current: PeriodFigures
    before: PeriodFigures
    series: Annotated[list[UsageRow], Meta(description="The period by hour, if it is longer than 72 hours by day.")]
    alerts: list[Alert]


class AlertList(Struct, frozen=True):
    data: list[Alert]


@endpoints.get("/overview", access=Access.FILTERED, raises=[NotFound])
async def show_overview(call: Call, query: OverviewQuery) -> Answer[OverviewState]:
    """Show turns, tokens, cost, errors, times and hit rates of a period, and what needs attention now."""
    name = await records.tenant_of(call, query.tenant)
    redis, length = call.gateway.redis, datetime.timedelta(hours=query.hours)
    end = current_hour() + datetime.timedelta(hours=1)
    division: By = "hour" if query.hours <= _HOURLY else "day"
    rows, current = await _figures(redis, name, end - length, end, division)
    _, before = await _figures(redis, name, end - 2 * length, end - length, division)
    return Answer(
        OverviewState(
            hours=query.hours,
            since=(end - length).strftime("%Y-%m-%dT%H"),
            until=end.strftime("%Y-%m-%dT%H"),
            tenant=name,
            current=current,
            before=before,
            series=[usage_row(row) for row in rows],
            alerts=await _alerts(call, name),
        )
    )


@endpoints.get("/alerts", access=Access.FILTERED, raises=[NotFound])
async def list_alerts(call: Call, query: AlertsQuery) -> Answer[AlertList]:
    """List what needs attention now, the most urgent first."""
    return Answer(AlertList(await _alerts(call, await records.tenant_of(call, query.tenant))))


async def _alerts(call: Call, tenant: str | None) -> list[Alert]:
    return await alerts(call.gateway, None if tenant is None else await records.find(call, Tenant, tenant))


async def _figures(
    redis: Redis, tenant: str | None, since: datetime.datetime, until: datetime.datetime, division: By
) -> tuple[list[ReportRow], PeriodFigures]:
    """Return the rows of a period, and its figures."""
    rows = await report(redis, ReportQuery(since=since, until=until, by=(division,), tenant=tenant))
    query, turns, errors, times = TurnQuery(since=since, until=until), 0, 0, list[float]()
    async for _, entry in recent.newest(redis, tenant, query, recent.place_before(until)):
        if not query.holds(entry):
            continue
        turns += 1
        errors += entry.outcome in _ERRORS
        if entry.first_token_ms is not None:
            times.append(entry.first_token_ms)
        if turns == _MOST_SAMPLED:
            break
    sums = total(rows)
    return rows, PeriodFigures(
        **shown(sums),
        hit_rate=sums.hits / sums.turns if sums.turns else None,
        prefix_hit_rate=sums.cached / sums.input if sums.input else None,
        sampled_turns=turns,
        errors=errors,
        error_rate=errors / turns if turns else None,
        first_token_ms=_quantiles(times),
    )


def _quantiles(times: list[float]) -> FirstTokenTimes | None:
    """Return the smallest times that half, and 95 %, do not exceed."""
    times = sorted(times)
    if not times:
        return None
    return FirstTokenTimes(*(times[math.ceil(share * len(times)) - 1] for share in (0.5, 0.95)))
