"""Usage and cost, from the ledger."""

from __future__ import annotations

import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gateway.admin.call import Access, Call
from gateway.admin.endpoints.shapes import TenantPath
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.billing.report import By, ReportQuery, report, shown, total
from gateway.errors import InvalidRequest

endpoints = Endpoints("usage", "Turns, tokens and cost, exact to the last token delivered.")

_DAYS = 30
_Only = Annotated[str, Meta(min_length=1, max_length=256)]


class UsageQuery(Input, frozen=True):
    """Which part of the ledger, and how it is summed up."""

    since: Annotated[
        datetime.date | None, Meta(description="First day, in UTC; 29 days before the last unless given.")
    ] = msgspec.field(default=None, name="from")
    until: Annotated[datetime.date | None, Meta(description="Last day, in UTC; today unless given.")] = msgspec.field(
        default=None, name="to"
    )
    by: Annotated[By, Meta(description="What each row is about.")] = "day"
    model: Annotated[_Only | None, Meta(description="Only this model.")] = None
    adapter: Annotated[_Only | None, Meta(description="Only this adapter.")] = None
    key: Annotated[_Only | None, Meta(description="Only this key, by its id.")] = None


class AllUsageQuery(UsageQuery, frozen=True):
    tenant: Annotated[_Only | None, Meta(description="Only this tenant.")] = None


class UsageSums(Struct, frozen=True, kw_only=True):
    turns: int
    cache_hits: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_microdollars: int


class UsageRow(UsageSums, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="Of the day (2026-11-22), hour (2026-11-22T14), model, adapter or key.")]


class UsageReport(Struct, frozen=True, kw_only=True):
    """Sums of a time; a row for each that has used something."""

    since: datetime.date = msgspec.field(name="from")
    until: datetime.date = msgspec.field(name="to")
    by: str
    data: list[UsageRow]
    total: UsageSums


@endpoints.get("/usage", access=Access.OPERATOR)
async def report_usage(call: Call, query: AllUsageQuery) -> Answer[UsageReport]:
    """Report usage of all tenants."""
    return await _report(call, query, query.tenant)


@endpoints.get("/tenants/{tenant}/usage", access=Access.TENANT)
async def report_tenant_usage(call: Call, path: TenantPath, query: UsageQuery) -> Answer[UsageReport]:
    """Report usage of a tenant."""
    return await _report(call, query, path.tenant)


async def _report(call: Call, query: UsageQuery, tenant: str | None) -> Answer[UsageReport]:
    last = query.until or datetime.datetime.now(datetime.UTC).date()
    try:
        first = query.since or last - datetime.timedelta(days=_DAYS - 1)
        asked = ReportQuery(
            since=_midnight(first),
            until=_midnight(last) + datetime.timedelta(days=1),
            by=(query.by,),
            tenant=tenant,
            model=query.model,
            adapter=query.adapter,
            key=query.key,
        )
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"from, to: {error}", param="from", code="invalid_value") from None
    rows = await report(call.gateway.redis, asked)
    data = [UsageRow(name=row.names[0], **shown(row.totals)) for row in rows]
    return Answer(UsageReport(since=first, until=last, by=query.by, data=data, total=UsageSums(**shown(total(rows)))))


def _midnight(day: datetime.date) -> datetime.datetime:
    return datetime.datetime.combine(day, datetime.time(), datetime.UTC)
