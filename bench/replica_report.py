"""The results of `bench.replicas`: figures over seeds, tables and the picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.replica_engines import Measured
from bench.replica_gateway import ServedReplicas
from bench.replica_rules import OURS
from bench.replica_simulation import ReplicaCost
from bench.report import Environment, picture, table


class Figure(msgspec.Struct):
    """Mean, smallest and largest value over the seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        return cls(statistics.fmean(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.mean:,.2f} ({self.low:,.2f}-{self.high:,.2f})"


class ReplicaRow(msgspec.Struct):
    """Results of one rule with one workload."""

    rule: str
    hit_ratio: Figure
    imbalance: Figure
    """Requests of the busiest replica over the mean."""
    work_imbalance: Figure
    ttft_p50: Figure
    """Median seconds to the first token."""
    ttft_p99: Figure


class Workload(msgspec.Struct):
    """Results of one workload on one pool."""

    name: str
    replicas: int
    capacity: int
    """Blocks of the workload that each replica's cache holds."""
    requests: int
    ceiling: float
    """Hit ratio of one unbounded cache that all share."""
    rows: list[ReplicaRow]


class ReplicaResult(msgspec.Struct):
    environment: Environment
    seeds: int
    workloads: list[Workload]
    sensitivity: dict[str, list[tuple[float, float, ReplicaRow]]]
    """Lists of beta, window and result, by workload."""
    speeds: dict[str, list[tuple[float, list[ReplicaRow]]]]
    """Lists of speed-up of the arrivals and results, by workload."""
    measured: Measured | None = None
    served: ServedReplicas | None = None


def markdown(result: ReplicaResult) -> str:
    cost = ReplicaCost()
    lines = [
        "# Which replica gets a request",
        "",
        f"Simulated replicas; one computes {cost.prefill:,.0f} prompt tokens or {cost.decode:,.0f} answer tokens per "
        "second and serves one request after another. *Ours* is the gateway's own placement with its defaults; the "
        "index, its room for blocks and what loads are predicted to be are the gateway's for all rules. *Match - load* "
        "is the rule of vLLM's production stack, with loads in tokens; *llm-d* has its prefix-cache scorer (weight 2) "
        f"and its queue scorer (1). Means over {result.seeds} seeds, smallest and largest in brackets; in the made-up "
        "service a seed is a day of its own. Imbalance: requests of the busiest replica over the mean, and the same "
        "for tokens that were computed. A block has 512 tokens, 64 in the made-up service. Made by "
        "`python -m bench.replicas`.",
    ]
    for each in result.workloads:
        lines += [
            "",
            f"## {each.name.capitalize()}: {each.replicas} replicas of {each.capacity:,} blocks",
            "",
            f"{each.requests:,} requests. One cache without end that all replicas share would hold {each.ceiling:.1%} "
            "of the blocks.",
            "",
            *table("rule | blocks found | imbalance | of work | TTFT p50 (s) | TTFT p99 (s)", map(_line, each.rows)),
        ]
    lines += ["", "![Time to first token by rule](replicas.png)"]
    if result.sensitivity:
        lines += ["", "## How much beta and the window matter"]
    for name, cells in result.sensitivity.items():
        lines += [
            "",
            f"{name.capitalize()}: blocks found / imbalance / TTFT p50 / p99 in seconds, by beta (rows) and window.",
            "",
            *_grid(cells),
        ]
    if result.speeds:
        lines += ["", "## How much the load matters", ""]
        lines += ["Requests so many times as often as above: blocks found / TTFT p50 / p99 in seconds."]
    for name, at_speeds in result.speeds.items():
        by_speed = [
            " | ".join([f"{speed:g}", *(f"{row.hit_ratio.mean:.1%} / {_times(row)}" for row in rows)])
            for speed, rows in at_speeds
        ]
        lines += ["", *table(" | ".join([name, *(row.rule for row in at_speeds[0][1])]), by_speed, words=0)]
    for part in (result.measured, result.served):
        if part is not None:
            lines += ["", *part.markdown()]
    return "\n".join([*lines, "", f"- {result.environment}", ""])


def plot(times: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Plot the share of requests that had their first token, over time."""
    with picture(path, columns=len(times), figsize=(5 * len(times), 4), sharey=True) as axes:
        for axis, (name, by_rule) in zip(axes, times.items(), strict=True):
            for rule, ttfts in by_rule.items():
                shares = [(index + 1) / len(ttfts) for index in range(len(ttfts))]
                axis.plot(sorted(ttfts), shares, label=rule, linewidth=2.5 if rule == OURS else 1.2)
            axis.set(title=name, xlabel="time to first token (s)", xscale="log")
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("share of requests")
        axes[0].legend()


def _grid(cells: Sequence[tuple[float, float, ReplicaRow]]) -> list[str]:
    windows = list(dict.fromkeys(window for _, window, _ in cells))
    rows = []
    for beta in dict.fromkeys(beta for beta, _, _ in cells):
        figures = [
            f"{row.hit_ratio.mean:.1%} / {row.imbalance.mean:.2f} / {_times(row)}" for at, _, row in cells if at == beta
        ]
        rows.append(" | ".join([f"{beta:g}", *figures]))
    return table(" | ".join(["beta", *(f"{window:g}" for window in windows)]), rows, words=0)


def _times(row: ReplicaRow) -> str:
    return f"{row.ttft_p50.mean:.2f} / {row.ttft_p99.mean:.2f}"


def _line(row: ReplicaRow) -> str:
    name = f"**{row.rule}**" if row.rule == OURS else row.rule
    found = f"{row.hit_ratio.mean:.1%} ({row.hit_ratio.low:.1%}-{row.hit_ratio.high:.1%})"
    return " | ".join([name, found, *map(str, (row.imbalance, row.work_imbalance, row.ttft_p50, row.ttft_p99))])
