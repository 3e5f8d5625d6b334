"""Usage and cost, from the ledger."""

from __future__ import annotations

import csv
import datetime
import io
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from gateway.admin.call import Access, Call
from gateway.admin.endpoints.shapes import FirstDay, LastDay, Only, TenantPath, days, midnight
from gateway.admin.kit.endpoints import Answer, Endpoints, Input
from gateway.billing import spreadsheet
from gateway.billing.report import By, ReportQuery, ReportRow, count_turns, report, shown, total
from gateway.errors import InvalidRequest

endpoints = Endpoints("usage", "Turns, tokens and cost, exact to the last token delivered.")

CSV = "text/csv"
_DAY = datetime.timedelta(days=1)
_MOST_TURNS = 200_000
"""Most single turns that are summed up for one answer, where it is about users."""


class UsageQuery(Input, frozen=True):
    """Which part of the ledger, and how it is summed up."""

    since: FirstDay = msgspec.field(default=None, name="from")
    until: LastDay = msgspec.field(default=None, name="to")
    by: Annotated[By, Meta(description="What each row is about.")] = "day"
    split: Annotated[By | None, Meta(description="A second division: a row for each pair.")] = None
    model: Annotated[Only | None, Meta(description="Only this model.")] = None
    adapter: Annotated[Only | None, Meta(description="Only this adapter.")] = None
    key: Annotated[Only | None, Meta(description="Only this key, by its id.")] = None


_OnlyTenant = Annotated[Only | None, Meta(description="Only this tenant.")]


class AllUsageQuery(UsageQuery, frozen=True):
    tenant: _OnlyTenant = None


class ReportedUsageQuery(UsageQuery, frozen=True):
    compare: Annotated[bool, Meta(description="Also report the time of equal length before.")] = False


class AllReportedUsageQuery(ReportedUsageQuery, frozen=True):
    tenant: _OnlyTenant = None


class UsageSums(Struct, frozen=True, kw_only=True):
    turns: int
    cache_hits: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_microdollars: int


class UsageRow(UsageSums, frozen=True, kw_only=True):
    name: Annotated[
        str, Meta(description="Of the day (2026-11-22), hour (2026-11-22T14), model, adapter, key, user or tenant.")
    ]
    split: Annotated[str | None, Meta(description="The same of the second division.")] = None


class UsagePeriod(Struct, frozen=True, kw_only=True):
    """Sums of a time; a row for each that has used something."""

    since: datetime.date = msgspec.field(name="from")
    until: datetime.date = msgspec.field(name="to")
    partial: Annotated[
        bool,
        Meta(description="Whether rows leave turns out that `total` counts: rows by user need single turns."),
    ]
    data: list[UsageRow]
    total: UsageSums


class UsageReport(UsagePeriod, frozen=True, kw_only=True):
    """Sums of a time, and of the one before if they are to be compared."""

    by: str
    split: str | None
    before: Annotated[UsagePeriod | None, Meta(description="The time of equal length before; null unless asked for.")]


@endpoints.get("/usage", access=Access.OPERATOR)
async def report_usage(call: Call, query: AllReportedUsageQuery) -> Answer[UsageReport]:
    """Report usage of all tenants."""
    return await _report(call, query, query.tenant)


@endpoints.get("/usage/csv", access=Access.OPERATOR, produces=CSV)
async def export_usage(call: Call, query: AllUsageQuery) -> Response:
    """Report usage of all tenants as CSV, like `roundhouse usage --csv`."""
    return await _export(call, query, query.tenant)


@endpoints.get("/tenants/{tenant}/usage", access=Access.TENANT)
async def report_tenant_usage(call: Call, path: TenantPath, query: ReportedUsageQuery) -> Answer[UsageReport]:
    """Report usage of a tenant."""
    return await _report(call, query, path.tenant)


@endpoints.get("/tenants/{tenant}/usage/csv", access=Access.TENANT, produces=CSV)
async def export_tenant_usage(call: Call, path: TenantPath, query: UsageQuery) -> Response:
    """Report usage of a tenant as CSV, like `roundhouse usage --csv`."""
    return await _export(call, query, path.tenant)


async def _report(call: Call, query: ReportedUsageQuery, tenant: str | None) -> Answer[UsageReport]:
    period = await _period(call, _asked(query, tenant))
    before = await _period(call, _asked(query, tenant, back=1)) if query.compare else None
    fields = msgspec.structs.asdict(period)
    return Answer(UsageReport(**fields, by=query.by, split=query.split, before=before))


async def _period(call: Call, asked: ReportQuery) -> UsagePeriod:
    whole = None
    if "user" in asked.by:  # read first: what is added meanwhile must not look as if it were missing
        whole = total(await report(call.gateway.redis, msgspec.structs.replace(asked, by=("day",))))
    rows = await _rows(call, asked)
    sums = whole or total(rows)
    return UsagePeriod(
        since=asked.since.date(),
        until=asked.until.date() - _DAY,
        partial=total(rows).turns < sums.turns,
        data=[usage_row(row) for row in rows],
        total=UsageSums(**shown(sums)),
    )


def usage_row(row: ReportRow) -> UsageRow:
    """Return a row of a report by one division or two, as it is shown."""
    return UsageRow(name=row.names[0], split=(*row.names, None)[1], **shown(row.totals))


async def _export(call: Call, query: UsageQuery, tenant: str | None) -> Response:
    asked = _asked(query, tenant)
    file = io.StringIO()
    csv.writer(file).writerows(spreadsheet.report_rows(asked, await _rows(call, asked)))
    headers = {"cache-control": "no-store", "content-disposition": 'attachment; filename="usage.csv"'}
    return Response(file.getvalue(), media_type=CSV, headers=headers)


def _asked(query: UsageQuery, tenant: str | None, *, back: int = 0) -> ReportQuery:
    """
    Args:
        back: by how many of its lengths the time lies before the one that is asked for.

    Raises:
        InvalidRequest: the ledger has no such report.
    """
    try:
        first, last = days(query.since, query.until)
        shift = back * (last - first + _DAY)
        return ReportQuery(
            since=midnight(first - shift),
            until=midnight(last - shift) + _DAY,
            by=(query.by,) if query.split is None else (query.by, query.split),
            tenant=tenant,
            model=query.model,
            adapter=query.adapter,
            key=query.key,
        )
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"from, to: {error}", param="from", code="invalid_value") from None


async def _rows(call: Call, asked: ReportQuery) -> list[ReportRow]:
    """
    Raises:
        InvalidRequest: too many single turns would have to be read.
    """
    redis = call.gateway.redis
    if "user" in asked.by and await count_turns(redis, asked) > _MOST_TURNS:
        raise InvalidRequest(
            f"from: more than {_MOST_TURNS} single turns; choose a shorter time or one tenant",
            param="from",
            code="invalid_value",
        )
    return await report(redis, asked)
