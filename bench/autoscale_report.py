"""The table and the picture of `bench.autoscale`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.autoscale_workload import COARSE, SPEED
from bench.report import picture, table
from scale.capacity import MeasuredStep, fit

WORK, IN_FLIGHT, FUTURE = "work", "in flight / slots", "future known, busy"


class AutoscaleRow(Struct):
    """One load under one rule."""

    load: str
    fluid: bool
    """Whether requests were amounts; else the real scheduler ran each of them."""
    rule: str
    setting: float
    start_seconds: float
    attained: float
    """Share of requests whose first token came in time."""
    replicas: float
    """Mean number of replicas that were paid."""
    offered: float
    """Mean work, in replicas."""
    changes: int
    """Number of looks at which the number of ready replicas differed from the one before."""

    @property
    def ratio(self) -> float:
        return self.replicas / self.offered

    def line(self) -> str:
        return (
            f"{self.load} | {self.rule} {self.setting:g} | {self.start_seconds:.0f} | {100 * self.attained:.2f} % | "
            f"{self.replicas:.1f} | {self.ratio:.2f} | {self.changes}"
        )


class FluidCheck(Struct):
    """The same hours through amounts, and through the real scheduler."""

    requests: int
    hours: float
    attained: tuple[float, float]
    replicas: tuple[float, float]


class AutoscaleResult(Struct):
    rows: list[AutoscaleRow]
    days: dict[str, list[tuple[float, int, float]]]
    """Of each load under our policy, two days at most: hours, ready replicas, offered work."""
    check: FluidCheck | None
    missing: list[str]
    """Files that were not there."""

    def with_those_of(self, other: AutoscaleResult) -> AutoscaleResult:
        return AutoscaleResult(
            [*self.rows, *other.rows],
            {**self.days, **other.days},
            self.check or other.check,
            sorted({*self.missing, *other.missing}),
        )


def equal(rows: Sequence[AutoscaleRow], attained: float) -> float | None:
    """Return the replicas at which a rule's settings attain a share, between two of them; None beyond all of them."""
    points = sorted((row.replicas, _misses(row.attained)) for row in rows)
    wanted = _misses(attained)
    for (low, more), (high, fewer) in pairwise(points):
        if fewer <= wanted <= more:
            share = (more - wanted) / (more - fewer) if more > fewer else 0.0
            return low + share * (high - low)
    return None


def comparisons(rows: Iterable[AutoscaleRow]) -> list[str]:
    """Return rows of a table: our policy's replicas, and those of the in-flight rule where it attains as much."""
    groups: dict[tuple[str, float], list[AutoscaleRow]] = {}
    for row in rows:
        groups.setdefault((row.load, row.start_seconds), []).append(row)
    lines = []
    for (load, start), group in groups.items():
        others = [row for row in group if row.rule == IN_FLIGHT]
        for row in group:
            if row.rule == WORK:
                other = equal(others, row.attained)
                cells = (
                    ["none of its settings", ""]
                    if other is None
                    else [f"{other:.1f}", f"{row.replicas / other - 1:+.0%}"]
                )
                attained = f"{100 * row.attained:.2f} %"
                lines.append(
                    " | ".join([load, f"{row.setting:g}", f"{start:.0f}", attained, f"{row.replicas:.1f}", *cells])
                )
    return lines


def markdown(result: AutoscaleResult, steps: Sequence[MeasuredStep]) -> str:
    """Return the tables, with how they came about."""
    cost = fit(steps)
    errors = [abs(cost.seconds(step.tokens, step.rows, step.kv_bytes) / step.seconds - 1) for step in steps]
    parts = msgspec.structs.astuple(cost)
    lines = [
        "# Autoscaling: recorded load under each rule",
        "",
        "Share of requests with TTFT within 2 s (Mooncake's prompts of up to 126,000 tokens: 2 s more than they take "
        "alone), and the mean number of replicas paid. A step costs "
        f"{1000 * parts[0]:.2f} ms, {1000 * parts[1]:.3f} ms a token, {1000 * parts[2]:.3f} ms a row and "
        f"{1e9 * parts[3]:.2f} ms for a megabyte of KV: fitted to {len(steps)} figures of `real-avx512.json` (SmolLM2 "
        f"135M, two cores), which it meets within {100 * max(errors):.0f} %. Replicas are {SPEED:g} times as fast, "
        f"with 32 slots; lengths of traces are divided by {COARSE}, and a simulated step stands for {COARSE}. `ratio`: "
        "paid replicas over the mean work. `changes`: looks, one each 10 s, at which another number was ready. `on "
        "GPUs`: steps of an L4 with a model of 8 billion parameters, by arithmetic from data sheets. `future known`: "
        "replicas are asked for so that they are ready when the recorded load needs them, and are kept only if they "
        "will be needed again before others could start; `busy` is the share of them that the work keeps busy then. "
        "`largest burst`: as many as that rule ever needs, all the time. Made by `python -m bench.autoscale`.",
        "",
    ]
    for fluid, title in (
        (False, "Through the real scheduler of each replica: an hour"),
        (True, "Through amounts: the second of two weeks"),
    ):
        rows = [row.line() for row in result.rows if row.fluid == fluid]
        if rows:
            header = "load | rule and setting | start, s | TTFT within 2 s | replicas | ratio | changes"
            lines += [f"## {title}", "", *table(header, rows, words=2), ""]
    if compared := comparisons(result.rows):
        header = "load | setting | start, s | TTFT within 2 s | replicas by work | by in flight | difference"
        lines += [
            "## Work beside requests in flight, at equal attainment",
            "",
            "Replicas of the in-flight rule are read off the line between its two nearest settings (misses on a "
            "logarithmic scale).",
            "",
            *table(header, compared),
            "",
        ]
    if result.check is not None:
        found = result.check
        lines += [
            f"Amounts against the real scheduler, {found.hours:g} h with the steepest rise of m-large, "
            f"{found.requests:,} requests: {100 * found.attained[0]:.2f} % and {100 * found.attained[1]:.2f} % in time "
            f"with {found.replicas[0]:.2f} and {found.replicas[1]:.2f} replicas.",
            "",
        ]
    if result.missing:
        lines += [f"Not run, as these files were not there: {', '.join(result.missing)}.", ""]
    lines.append("![Misses over paid replicas; work and replicas over a day](autoscale.png)")
    return "\n".join(lines) + "\n"


def plot(result: AutoscaleResult, path: Path) -> None:
    """Plot misses over paid replicas for each rule, and work and replicas over time."""
    loads = list(dict.fromkeys(row.load for row in result.rows))
    load = next((name for name in loads if name.endswith("on GPUs")), loads[0])
    rules = list(dict.fromkeys(row.rule for row in result.rows))
    with picture(path, columns=2, figsize=(12, 4.5)) as axes:
        for rule, start in dict.fromkeys((row.rule, row.start_seconds) for row in result.rows if row.load == load):
            rows = [row for row in result.rows if (row.load, row.rule, row.start_seconds) == (load, rule, start)]
            points = sorted((row.ratio, math.exp(_misses(row.attained))) for row in rows)
            label = f"{rule}, start {start:.0f} s"
            line, colour = "-" if start > 60 else "--", f"C{rules.index(rule)}"
            axes[0].plot(*zip(*points, strict=True), line, color=colour, marker="o", label=label)
        axes[0].set(title=load, xlabel="paid replicas / mean work", ylabel="TTFT above 2 s", xscale="log", yscale="log")
        days = result.days[load]
        hours = [hour for hour, _, _ in days]
        axes[1].plot(hours, [offered for _, _, offered in days], linewidth=0.5, color="grey", label="work, in replicas")
        axes[1].plot(hours, [ready for _, ready, _ in days], label="ready replicas")
        axes[1].set(title=f"{load}, by work, start 180 s", xlabel="hours", ylabel="replicas")
        for axis in axes:
            axis.grid(alpha=0.3)
            axis.legend(fontsize=7)


def _misses(attained: float) -> float:
    return math.log(max(1 - attained, 1e-6))
