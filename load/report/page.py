"""The page of a report: figures, tables and charts in one HTML file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import jinja2

from load.records import MeasuredTurn
from load.report.document import LoadReport
from load.report.svg import ChartAxis, ChartLine, Point, chart
from load.statistics import LoadSummary, Quantiles, quantile

_MOST_POINTS = 300
"""Of a line; a curve with more looks the same."""
_MOST_DOTS = 5_000
_BUCKETS = 60
LATENCIES = {
    "ttft": "first text (TTFT)",
    "itl": "between texts (ITL)",
    "tpot": "per output token (TPOT)",
    "e2e": "whole turn (E2E)",
    "late": "waiting to be sent",
    "resumed": "cut until resumed",
    "stopped": "cancelled until ended",
}
"""Distributions of a summary, and what they are called."""


def page(report: LoadReport, turns: Sequence[MeasuredTurn]) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["ms"] = milliseconds
    charts = [each for each in (*_of_runs(report), *_of_turns(report, turns)) if each]
    return environment.get_template("page.html.jinja").render(
        report=report,
        summary=report.run.summary,
        latencies=latencies(report.run.summary),
        charts=charts,
    )


def latencies(summary: LoadSummary) -> list[tuple[str, Quantiles]]:
    """Return the distributions that a run has, with their names."""
    return [(title, found) for name, title in LATENCIES.items() if (found := getattr(summary, name)) is not None]


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, with about three digits."""
    value = 1000 * seconds
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _of_runs(report: LoadReport) -> list[str]:
    if len(report.runs) < 2:
        return []
    runs = sorted(report.runs, key=lambda each: each.rate)
    rate = ChartAxis("turns per second", logarithmic=True)
    shares = [(run.rate, 100 * run.summary.verdict.attainment) for run in runs]
    quantiles = [
        ChartLine(name, [(run.rate, getattr(run.summary.ttft, name)) for run in runs if run.summary.ttft])
        for name in ("p50", "p99")
    ]
    return [
        chart(
            "Good turns by rate",
            rate,
            ChartAxis("% of turns", at_least=0.0),
            [ChartLine("good", shares)],
            100 * report.objectives.attainment,
        ),
        chart("TTFT by rate", rate, ChartAxis("seconds", logarithmic=True), quantiles, report.objectives.ttft),
    ]


def _of_turns(report: LoadReport, turns: Sequence[MeasuredTurn]) -> list[str]:
    first = [(each.plan.start, each.ttft) for each in turns if each.ttft is not None]
    curves = {
        "TTFT": [ttft for _, ttft in first],
        "ITL": [gap for each in turns for gap in each.gaps],
        "E2E": [each.e2e for each in turns if each.ended_well],
    }
    time = ChartAxis("seconds since the run began", at_least=0.0)
    return [
        chart(
            "Latencies",
            ChartAxis("seconds", logarithmic=True),
            ChartAxis("% of values that are no longer", at_least=0.0),
            [ChartLine(name, _cumulative(values)) for name, values in curves.items() if values],
        ),
        chart(
            "TTFT of each turn, by its intended start",
            time,
            ChartAxis("seconds", at_least=0.0),
            [ChartLine("TTFT", first[:: max(1, len(first) // _MOST_DOTS)], scattered=True)],
            report.objectives.ttft,
        ),
        chart("Turns due and ended", time, ChartAxis("turns per second", at_least=0.0), _rates(turns)),
        chart("Turns in flight", time, ChartAxis("turns", at_least=0.0), [ChartLine("in flight", _in_flight(turns))]),
    ]


def _cumulative(values: Iterable[float]) -> list[Point]:
    ordered = sorted(values)
    shares = (number / _MOST_POINTS for number in range(1, _MOST_POINTS + 1))
    return [(quantile(ordered, share), 100 * share) for share in shares]


def _rates(turns: Sequence[MeasuredTurn]) -> list[ChartLine]:
    seconds = max((each.ended for each in turns), default=0.0)
    width = max(1.0, seconds / _BUCKETS)

    def line(name: str, times: Iterable[float]) -> ChartLine:
        counts = [0] * (math.floor(seconds / width) + 1)
        for each in times:
            counts[min(int(each / width), len(counts) - 1)] += 1
        return ChartLine(name, [((at + 0.5) * width, count / width) for at, count in enumerate(counts)])

    return [line("due", (each.plan.start for each in turns)), line("ended", (each.ended for each in turns))]


def _in_flight(turns: Sequence[MeasuredTurn]) -> list[Point]:
    changes = sorted([(each.plan.start, 1) for each in turns] + [(each.ended, -1) for each in turns])
    running, points = 0, []
    for at, change in changes:
        running += change
        points.append((at, float(running)))
    return points[:: max(1, len(points) // _MOST_POINTS)]
