"""Rows of CSV files about the usage ledger: sums and single turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.billing.cost import dollars
from gateway.billing.entry import LedgerEntry, Totals
from gateway.billing.report import ReportQuery, ReportRow, shown

_TURN_COLUMNS = tuple(name for name in LedgerEntry.__struct_fields__ if name not in ("at", "picodollars"))
TURN_HEADER = ("time", *_TURN_COLUMNS, "cost_dollars", "cost_picodollars")


def report_rows(query: ReportQuery, rows: Sequence[ReportRow]) -> Iterator[list[Any]]:
    """Yield the header and the rows of a report."""
    yield [*query.by, *shown(Totals()), "cost_dollars"]
    for row in rows:
        yield [*map(_harmless, row.names), *shown(row.totals).values(), dollars(row.totals.picodollars)]


def turn_row(entry: LedgerEntry) -> list[Any]:
    """Return the row of a single turn, below `TURN_HEADER`."""
    time = datetime.fromtimestamp(entry.at / 1000, UTC).isoformat(timespec="milliseconds")
    values = (getattr(entry, name) for name in _TURN_COLUMNS)
    cost = ["", ""] if entry.picodollars is None else [dollars(entry.picodollars), entry.picodollars]
    return [time, *(_harmless(value) if isinstance(value, str) else value for value in values), *cost]


def _harmless(text: str) -> str:
    """Return a cell's text such that no spreadsheet takes it for a formula."""
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
