"""`roundhouse usage`: what was used and what it cost, as a table, CSV or JSON, and whether its sums agree."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import IO, Any

import click
import msgspec
from redis.asyncio import Redis
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from gateway.billing import report, spreadsheet
from gateway.billing.cost import dollars
from gateway.billing.entry import LedgerEntry, Totals
from gateway.cli.connection import config_option, json_option, load_settings, with_redis

_COUNTS = ("turns", "cache hits", "input", "cached input", "output")
_SHOW_PROGRESS_TURNS = 20_000


class Hour(click.ParamType[datetime]):
    """A day or hour of UTC, or how long ago: 2026-11-22, 2026-11-22T14, 12h, 30d."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        text, now = str(value), report.current_hour()
        if text[:-1].isdecimal() and text[-1:] in ("h", "d") and len(text) <= 6:
            number = int(text[:-1])
            return now - timedelta(hours=number) if text[-1] == "h" else now.replace(hour=0) - timedelta(days=number)
        for format in ("%Y-%m-%d", "%Y-%m-%dT%H", "%Y-%m-%dT%H:%MZ"):
            try:
                return datetime.strptime(text, format).replace(tzinfo=UTC)
            except ValueError:
                continue
        self.fail(
            f"{text!r}: expected a day or hour of UTC (2026-11-22, 2026-11-22T14) or an age (12h, 30d)", param, ctx
        )


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--to", "until", type=Hour(), help="End of the time, not included; default: now."),
        click.option(
            "--from",
            "since",
            type=Hour(),
            default="29d",
            show_default=True,
            help="Beginning of the time; the default makes 30 days with today.",
        ),
        click.option("--key", help="Count only this key."),
        click.option("--adapter", help="Count only this adapter."),
        click.option("--model", help="Count only this model, with its adapters."),
        click.option("--tenant", help="Count only this tenant."),
        config_option,
    ):
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@_filters
@click.option("--by", type=click.Choice(report.BY), multiple=True, help="A line for each; may be repeated. [day]")
@click.option("--turns", is_flag=True, help="Write a line for every turn that is kept; with --csv or --json.")
@click.option("--csv", "file", metavar="FILE", help="Write CSV to FILE, or to standard output if that is -.")
@json_option
@click.pass_context
def usage(
    context: click.Context,
    /,
    config: str | None,
    by: tuple[report.By, ...],
    turns: bool,
    file: str | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """Report what was used and what it cost, by days and hours of UTC; docs/usage.md says what is counted.

    \b
    Show the last 30 days, or one tenant's month by model and key:
        roundhouse usage
        roundhouse usage --tenant acme --from 2026-11-01 --to 2026-12-01 --by model --by key
    Write sums, or every single turn of a day, for a spreadsheet:
        roundhouse usage --by tenant --by day --csv usage.csv
        roundhouse usage --turns --from 2026-11-22 --to 2026-11-23 --csv turns.csv
    Check that sums and single turns agree:
        roundhouse usage verify
    """
    if context.invoked_subcommand is not None:
        return
    query = _query(by or ("day",), **filters)
    settings = load_settings(config)
    if file is not None and as_json:
        raise click.UsageError("--csv and --json: choose one")
    if turns and by:
        raise click.UsageError("--turns and --by: choose one; single turns are not summed up")
    if turns and file is None and not as_json:
        raise click.UsageError("--turns: say --csv FILE or --json; there may be many")
    if not turns:
        rows = with_redis(settings, lambda redis: report.report(redis, query))
    if file is not None:
        try:
            with click.open_file(file, "w", encoding="utf-8") as out:
                write = _row_writer(out, file)
                if turns:
                    with_redis(settings, lambda redis: _write_turns(redis, query, write))
                else:
                    for row in spreadsheet.report_rows(query, rows):
                        write(row)
        except OSError as error:
            raise click.ClickException(f"{file}: {error.strerror or error}") from error
    elif turns:
        with_redis(settings, lambda redis: _print_turns(redis, query))
    elif as_json:
        lines = [{**dict(zip(query.by, row.names, strict=True)), **report.shown(row.totals)} for row in rows]
        plain = {"from": query.since, "to": query.until, "rows": lines, "total": report.shown(report.total(rows))}
        click.echo(msgspec.json.encode(plain).decode())
    else:
        _print_table(query, rows)


@usage.command("verify")
@_filters
def verify(config: str | None, **filters: Any) -> None:
    """Say whether the sums of days and hours are those of the single turns; exit with 1 if not."""
    if any(filters[name] for name in ("model", "adapter", "key")):
        raise click.UsageError("verify compares whole days; it knows --tenant, --from and --to only")
    query = _query(("day",), **filters)

    async def check(redis: Redis) -> list[report.Verified]:
        return [verified async for verified in report.verify(redis, query)]

    days = with_redis(load_settings(config), check)
    problems = 0
    for day in days:
        for problem in day.problems:
            problems += 1
            click.echo(f"{day.tenant} {day.day}: {problem}", err=True)
    counted, kept = (sum(getattr(day, name) for day in days) for name in ("turns", "kept"))
    if problems:
        raise click.ClickException(f"{problems} figures disagree")
    click.echo(f"{len(days)} days of tenants agree: {counted} turns, {kept} of them with their entries")


def _query(
    by: tuple[report.By, ...],
    *,
    since: datetime,
    until: datetime | None,
    tenant: str | None,
    model: str | None,
    adapter: str | None,
    key: str | None,
) -> report.ReportQuery:
    end = until or report.current_hour() + timedelta(hours=1)
    try:
        return report.ReportQuery(since=since, until=end, by=by, tenant=tenant, model=model, adapter=adapter, key=key)
    except ValueError as error:
        raise click.UsageError(f"--{error}") from None


def _print_table(query: report.ReportQuery, rows: list[report.ReportRow]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_footer=True)
    sums = report.total(rows)
    for index, by in enumerate(query.by):
        table.add_column(by, overflow="fold", footer="" if index else "total")
    for column, footer in zip((*_COUNTS, "dollars"), _cells(sums), strict=True):
        table.add_column(column, justify="right", no_wrap=True, footer=footer)
    for row in rows:
        table.add_row(*(escape(name) or "-" for name in row.names), *_cells(row.totals))
    Console(highlight=False).print(table if rows else "nothing was used in this time")


def _cells(sums: Totals) -> list[str]:
    counts = (sums.turns, sums.hits, sums.input, sums.cached, sums.output)
    return [*(f"{count:,}" for count in counts), dollars(sums.picodollars)]


def _row_writer(out: IO[str], file: str) -> Callable[[list[Any]], None]:
    writer = csv.writer(out)

    def write(row: list[Any]) -> None:
        try:
            writer.writerow(row)
        except OSError as error:  # not to be taken for Redis'
            raise click.ClickException(f"{file}: {error.strerror or error}") from error

    return write


async def _write_turns(redis: Redis, query: report.ReportQuery, write: Callable[[list[Any]], Any]) -> None:
    write(list(spreadsheet.TURN_HEADER))
    async for entry in _with_progress(redis, query):
        write(spreadsheet.turn_row(entry))


async def _print_turns(redis: Redis, query: report.ReportQuery) -> None:
    async for entry in _with_progress(redis, query):
        click.echo(msgspec.json.encode(entry).decode())


async def _with_progress(redis: Redis, query: report.ReportQuery) -> AsyncIterator[LedgerEntry]:
    """Yield single turns; if they are many, with a bar on standard error where that is a terminal."""
    count = await report.count_turns(redis, query)
    looked_at: Counter[str] = Counter()
    with Progress(
        console=Console(stderr=True), transient=True, disable=count < _SHOW_PROGRESS_TURNS or not sys.stderr.isatty()
    ) as progress:
        task = progress.add_task("turns", total=count)
        async for entry in report.turns(redis, query, looked_at):
            yield entry
            progress.update(task, completed=looked_at["turns"])
