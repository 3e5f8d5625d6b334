"""A report as a few lines of a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from load.report.document import LoadReport
from load.report.page import latencies, milliseconds
from load.statistics import LoadSummary

_SHARES = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9", "maximum": "max"}


def show(report: LoadReport, console: Console) -> None:
    """Print the figures of a report."""
    if len(report.runs) > 1:
        console.print(_search(report))
    summary = report.run.summary
    console.print(_latencies(summary))
    ends = ", ".join(f"{count:,} {end}" for end, count in summary.ends.items())
    console.print(
        f"{summary.turns:,} turns in {summary.seconds:.1f} s: {summary.offered:.3g}/s offered, {summary.goodput:.3g}/s "
        f"good, {summary.output_tokens:,.0f} tokens/s, at most {summary.most_in_flight} in flight; {ends}",
        soft_wrap=True,
    )
    for error, count in summary.errors.items():
        console.print(f"  {count:,} times: {error}", markup=False, soft_wrap=True)
    if report.capacity is not None:
        console.print(f"highest rate that keeps the objectives: [bold]{report.capacity:.3g}[/] turns per second")
    for reason in report.verdict.reasons:
        console.print(reason, markup=False, soft_wrap=True)
    style, word = ("green", "met") if report.verdict.met else ("red", "missed")
    console.print(f"objectives {word}: {report.objectives}", style=style, soft_wrap=True)


def _latencies(summary: LoadSummary) -> Table:
    table = Table("milliseconds", box=None, pad_edge=False)
    for title in ("mean", *_SHARES.values()):
        table.add_column(title, justify="right")
    for name, found in latencies(summary):
        values = (found.mean, *(getattr(found, field) for field in _SHARES))
        table.add_row(name, *map(milliseconds, values))
    return table


def _search(report: LoadReport) -> Table:
    table = Table("turns/s", "good", "TTFT p99, ms", "", box=None, pad_edge=False)
    for run in report.runs:
        ttft = run.summary.ttft
        kept = "ended early" if run.stopped else "kept" if run.summary.verdict.met else "missed"
        share = f"{100 * run.summary.verdict.attainment:.2f} %"
        table.add_row(f"{run.rate:.3g}", share, milliseconds(ttft.p99) if ttft else "", kept)
    return table
