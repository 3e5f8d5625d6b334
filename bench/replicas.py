"""Which replica gets a request: our rule beside the usual ones, on a recorded trace and on a made-up service.

    ROUNDHOUSE_BENCH_DATA=/path/to/data python -m bench.replicas

reads `mooncake_conversation_trace.jsonl.gz` there (Mooncake, FAST'25: arrival times, lengths and the 512-token blocks
of 12,031 prompts) and serves it with 8 simulated replicas (`bench.replica_simulation`). `--engines N` also puts the
rules in front of N real engine processes on this repository's model (`bench.replica_engines`), and `--gateway N` serves
a part of the trace through a real gateway (`bench.replica_gateway`). The rule's parameters are its defaults, which were
chosen before; how the figures depend on them is a table of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench import replica_gateway
from bench.data import data_file
from bench.measure import quantile
from bench.replica_engines import Measured, measure
from bench.replica_gateway import ServedReplicas, scaled
from bench.replica_simulation import (
    ReplicaArrival,
    ReplicaCost,
    ReplicaRun,
    Rule,
    by_score,
    ceiling,
    least_loaded,
    longest_prefix,
    power_of_two,
    round_robin,
    simulate,
)
from bench.replica_workload import TRACE_BLOCK, Service, made_up, trace
from bench.report import options, picture, publish, table
from router.replica import ReplicaPolicy

FILE = "mooncake_conversation_trace.jsonl.gz"
REPLICAS = 8
SEEDS = 5
BETAS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
WINDOWS = (0.5, 1.0, 2.0, 8.0)
SPEEDS = (0.25, 0.5, 0.8, 1.0, 1.2)
OURS = "ours"
RULES: dict[str, Callable[[], Rule]] = {
    "round robin": round_robin,
    "power of two": lambda: power_of_two,
    "least loaded": lambda: least_loaded,
    "longest prefix": lambda: longest_prefix,
    OURS: lambda: by_score(ReplicaPolicy()),
}


class Figure(msgspec.Struct):
    """Mean, smallest and largest value over the seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        return cls(statistics.fmean(values), min(values), max(values))


class ReplicaRow(msgspec.Struct):
    """Results of one rule with one workload."""

    rule: str
    hit_ratio: Figure
    imbalance: Figure
    """Requests of the busiest replica over the mean."""
    work_imbalance: Figure
    computed: Figure
    """Prompt tokens that no prefix cache held."""
    ttft_p50: Figure
    """Median seconds to the first token."""
    ttft_p99: Figure


class Workload(msgspec.Struct):
    name: str
    requests: int
    ceiling: float
    """Hit ratio of one unbounded cache that all share."""
    rows: list[ReplicaRow]


class ReplicaResult(msgspec.Struct):
    workloads: list[Workload]
    sensitivity: dict[str, list[tuple[float, float, ReplicaRow]]]
    """Lists of beta, window and result, by workload."""
    speeds: dict[str, list[tuple[float, list[ReplicaRow]]]]
    """Lists of speed-up of the arrivals and results, by workload."""
    measured: Measured | None = None
    served: ServedReplicas | None = None


class WorkloadSource(msgspec.Struct):
    """A workload, and the replicas that serve it."""

    arrivals: Callable[[int], list[ReplicaArrival]]
    """Makes the arrivals from a seed."""
    capacity: int
    block: int

    def row(self, name: str, rule: Callable[[], Rule], seeds: int) -> ReplicaRow:
        runs = [
            simulate(
                self.arrivals(seed), rule(), replicas=REPLICAS, capacity=self.capacity, block=self.block, seed=seed
            )
            for seed in range(1, seeds + 1)
        ]
        return _row(name, runs)


def run(path: Path, requests: int, seeds: int) -> tuple[ReplicaResult, dict[str, dict[str, list[float]]]]:
    """Return all tables, and for the plot the times to first token by workload and rule."""
    recorded = trace(path, requests)
    service = Service(seconds=600.0 * min(1.0, requests / 12_031))
    sources = {
        "the trace": WorkloadSource(lambda seed: recorded, 3000, TRACE_BLOCK),
        "the made-up service": WorkloadSource(lambda seed: made_up(service, seed), 6000, service.block),
    }
    workloads, sensitivity, times = [], {}, {}
    for name, source in sources.items():
        first = source.arrivals(1)
        rows = [source.row(rule, make, seeds) for rule, make in RULES.items()]
        workloads.append(Workload(name, len(first), ceiling(first), rows))
        sensitivity[name] = [
            (beta, window, source.row(OURS, lambda b=beta, w=window: by_score(ReplicaPolicy(beta=b, window=w)), 1))  # type: ignore[misc]
            for beta in BETAS
            for window in WINDOWS
        ]
        times[name] = {
            rule: simulate(first, make(), replicas=REPLICAS, capacity=source.capacity, block=source.block).ttfts
            for rule, make in RULES.items()
        }
    speeds: dict[str, list[tuple[float, list[ReplicaRow]]]] = {name: [] for name in sources}
    for speed in SPEEDS:
        recorded = trace(path, requests, speed=speed)
        busy = dataclasses.replace(service, conversations=speed * service.conversations)
        for name, source in sources.items():
            arrivals = recorded if name == "the trace" else made_up(busy, seed=1)
            at_speed = WorkloadSource(lambda seed, arrivals=arrivals: arrivals, source.capacity, source.block)  # type: ignore[misc]
            rows = [at_speed.row(rule, RULES[rule], 1) for rule in ("power of two", "least loaded", OURS)]
            speeds[name].append((speed, rows))
    return ReplicaResult(workloads, sensitivity, speeds), times


def _row(name: str, runs: Sequence[ReplicaRun]) -> ReplicaRow:
    def figure(of: Callable[[ReplicaRun], float]) -> Figure:
        return Figure.of([of(run) for run in runs])

    return ReplicaRow(
        rule=name,
        hit_ratio=figure(lambda run: run.hit_ratio),
        imbalance=figure(lambda run: run.imbalance),
        work_imbalance=figure(lambda run: run.work_imbalance),
        computed=figure(lambda run: run.computed),
        ttft_p50=figure(lambda run: statistics.median(run.ttfts)),
        ttft_p99=figure(lambda run: quantile(run.ttfts, 0.99)),
    )


def markdown(result: ReplicaResult) -> str:
    cost = ReplicaCost()
    lines = [
        "# Which replica gets a request",
        "",
        f"{REPLICAS} simulated replicas; one computes {cost.prefill:,.0f} prompt tokens or {cost.decode:,.0f} "
        "answer tokens per second and serves one request after another. *Ours* is the rule of `router/replica.py` with "
        "its defaults. The load is predicted as in the gateway, the prefix index is the gateway's and is told what "
        f"replicas store and give up. Means over {SEEDS} seeds, smallest and largest in brackets; in the made-up "
        "service a seed is a day of its own. Imbalance: requests of the busiest replica over the mean, and the same "
        "for tokens that were computed. At this load the made-up service is more than the pool can do unless prefixes "
        "are found, so that the other rules' queues grow; further down are lower loads. "
        "Made by `python -m bench.replicas`.",
    ]
    for workload in result.workloads:
        lines += [
            "",
            f"## {workload.name.capitalize()}",
            "",
            f"{workload.requests:,} requests. One cache without end that all replicas share would hold "
            f"{workload.ceiling:.1%} of the blocks.",
            "",
            *table(
                "rule | blocks found | imbalance | of work | prompt tokens computed (M) | TTFT p50 (s) | TTFT p99 (s)",
                map(_line, workload.rows),
            ),
        ]
    lines += ["", "![Time to first token by rule](replicas.png)", "", "## How much beta and the window matter", ""]
    for name, cells in result.sensitivity.items():
        by_beta = [
            " | ".join(
                [f"{beta:g}"]
                + [
                    f"{row.hit_ratio.mean:.1%} / {row.imbalance.mean:.2f} / {row.ttft_p99.mean:.2f}"
                    for row in (row for at, _, row in cells if at == beta)
                ]
            )
            for beta in BETAS
        ]
        lines += [
            f"{name.capitalize()}: blocks found / imbalance / TTFT p99 in seconds, by beta (rows) and window.",
            "",
            *table(" | ".join(["beta", *(f"{window:g}" for window in WINDOWS)]), by_beta, words=0),
            "",
        ]
    lines += _speeds(result)
    if result.measured is not None:
        lines += ["", *result.measured.markdown()]
    if result.served is not None:
        lines += ["", *result.served.markdown()]
    return "\n".join(lines) + "\n"


def _speeds(result: ReplicaResult) -> list[str]:
    lines = [
        "## How much the load matters",
        "",
        "Requests so many times as often as above: blocks found / TTFT p50 / p99 in seconds.",
    ]
    for name, at_speeds in result.speeds.items():
        by_speed = []
        for speed, rows in at_speeds:
            figures = [f"{row.hit_ratio.mean:.1%} / {row.ttft_p50.mean:.2f} / {row.ttft_p99.mean:.2f}" for row in rows]
            by_speed.append(" | ".join([f"{speed:g}", *figures]))
        lines += ["", *table(" | ".join([name, *(row.rule for row in at_speeds[0][1])]), by_speed, words=0)]
    return lines


def _line(row: ReplicaRow) -> str:
    name = f"**{row.rule}**" if row.rule == OURS else row.rule
    computed = Figure(*(value / 1e6 for value in (row.computed.mean, row.computed.low, row.computed.high)))
    figures = map(_figure, (row.imbalance, row.work_imbalance, computed, row.ttft_p50, row.ttft_p99))
    found = f"{row.hit_ratio.mean:.1%} ({row.hit_ratio.low:.1%}-{row.hit_ratio.high:.1%})"
    return " | ".join([name, found, *figures])


def _figure(figure: Figure) -> str:
    return f"{figure.mean:,.2f} ({figure.low:,.2f}-{figure.high:,.2f})"


def plot(times: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Plot the share of requests that had their first token, over time."""
    with picture(path, columns=len(times), figsize=(10, 4), sharey=True) as axes:
        for axis, (name, by_rule) in zip(axes, times.items(), strict=True):
            for rule, ttfts in by_rule.items():
                shares = [(index + 1) / len(ttfts) for index in range(len(ttfts))]
                axis.plot(sorted(ttfts), shares, label=rule, linewidth=2.5 if rule == OURS else 1.2)
            axis.set(title=name, xlabel="time to first token (s)", xscale="log")
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("share of requests")
        axes[0].legend()


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--trace", type=Path, help=f"a trace instead of {FILE} in ROUNDHOUSE_BENCH_DATA")
    parser.add_argument("--requests", type=int, default=12_031, help="number of its first requests to use")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs per row")
    parser.add_argument("--engines", type=int, default=0, help="also measure with so many real engines")
    parser.add_argument("--gateway", type=int, default=0, help="also serve through a gateway with so many real engines")
    arguments = parser.parse_args(argv)
    path = data_file(FILE, arguments.trace)
    result, times = run(path, arguments.requests, arguments.seeds)
    if arguments.engines:
        result.measured = asyncio.run(measure(arguments.engines, RULES))
    if arguments.gateway:
        part = scaled(trace(path, arguments.requests))
        result.served = asyncio.run(replica_gateway.measure(arguments.gateway, part))
    publish(arguments.output / "replicas", markdown(result), result)
    plot(times, arguments.output / "replicas.png")


if __name__ == "__main__":
    main()
