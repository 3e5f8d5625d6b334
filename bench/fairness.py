"""Replays a recorded load through the real scheduler, policy by policy, and shows what each tenant waits.

    ROUNDHOUSE_BENCH_DATA=/path/to/data python -m bench.fairness

reads `mooncake_conversation_trace.jsonl.gz` there (Mooncake, FAST'25: arrival times, lengths and shared prefixes of
12,031 requests) and simulates; `--trace` names another file. A step takes as long as a cost model says, so that the
result is the same on every machine. Lengths are scaled down, and times so that the engine has `--load` times the work
that it can do. The trace knows no tenants: each conversation is given to one of them, half of all to the greedy one,
which sends what it has for every few minutes at once. One of the polite tenants is premium, one sends batch work.
"""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from bench.data import data_file
from bench.measure import quantile
from bench.report import options, picture, publish, table
from engine.scheduling.config import POLICIES, SchedulerConfig
from engine.wire import PolicyName, ServiceClass
from load.traces import TracePoint, read_trace
from scale.capacity import StepCost
from scale.simulation import Arrival, Simulation, simulate

FILE = "mooncake_conversation_trace.jsonl.gz"
GREEDY = "greedy"
POLITE = (*(f"polite-{number}" for number in range(1, 6)), "premium", "batch")
CLASSES: dict[str, ServiceClass] = {"premium": "premium", "batch": "batch"}
"""Service classes of tenants; all others are standard."""
COST = StepCost(base=0.004, token=0.0001, row=0.0001)
"""Seconds of a step, about those of a small model on a CPU."""
CONFIG = SchedulerConfig(blocks=2048, step_tokens=512, max_running=32, max_waiting=100_000)
_HASHED_TOKENS = 512
_SCALE = 16
_BLOCK = _HASHED_TOKENS // _SCALE


class FairnessRow(msgspec.Struct):
    """How one tenant was served under one policy, in seconds."""

    policy: str
    tenant: str
    requests: int
    ttft_p50: float
    ttft_p99: float


class Total(msgspec.Struct):
    """Results of one policy as a whole."""

    policy: str
    polite_p99: float
    """p99 of the TTFT of all polite tenants' requests of the standard class."""
    jain: float
    windows: int
    """Number of windows over which the fairness index is averaged."""
    tokens_per_second: float
    """Prompt tokens (cached ones included) and output tokens of finished requests."""
    cached: float
    """Share of prompt tokens found in the prefix cache."""
    preemptions: int


class FairnessResult(msgspec.Struct):
    requests: int
    load: float
    rows: list[FairnessRow]
    totals: list[Total]


def tenant_of(entry: TracePoint) -> str:
    """Return a request's tenant: the same for all requests of a conversation, which share their first tokens."""
    conversation = entry.blocks[: min(2, len(entry.blocks))][-1]
    place = int.from_bytes(hashlib.blake2b(b"%d" % conversation, digest_size=4).digest(), "little") % (2 * len(POLITE))
    return GREEDY if place >= len(POLITE) else POLITE[place]


def arrivals(entries: Iterable[TracePoint], speed: float, batch: float = 300.0) -> list[Arrival]:
    """Return the trace's requests as arrivals for the simulation.

    Args:
        speed: how much faster than recorded time passes.
        batch: seconds of recorded requests that the greedy tenant sends at once.
    """
    arrived = []
    for entry in entries:
        tenant = tenant_of(entry)
        at = entry.start
        if tenant == GREEDY:
            at -= at % batch
        prompt = [token for block in entry.blocks for token in [block] * _BLOCK]
        length = max(1, min(entry.input_tokens // _SCALE, len(prompt)))
        output = max(1, entry.output_tokens // _SCALE)
        arrived.append(Arrival(at / speed, tenant, prompt[:length], output, CLASSES.get(tenant, "standard")))
    return arrived


def replay(
    entries: Sequence[TracePoint], load: float, policies: Sequence[PolicyName] = POLICIES
) -> dict[str, Simulation]:
    """Run one simulation per policy. `load`: work offered per work that the engine can do in the time of the trace."""
    everything_at_once = simulate(arrivals(entries, speed=1e9), _config("fcfs"), COST)
    span = max(entry.start for entry in entries)
    speed = max(span, 1e-9) * load / everything_at_once.seconds
    coming = arrivals(entries, speed)
    return {policy: simulate(coming, _config(policy), COST, window=1.0) for policy in policies}


def summarise(runs: dict[str, Simulation], load: float) -> FairnessResult:
    rows, totals = [], []
    for policy, run in runs.items():
        for tenant in (GREEDY, *POLITE):
            ttfts = run.ttfts(tenant)
            if ttfts:
                rows.append(FairnessRow(policy, tenant, len(ttfts), statistics.median(ttfts), quantile(ttfts, 0.99)))
        prompts = sum(len(outcome.arrival.prompt) for outcome in run.outcomes)
        tokens = prompts + sum(outcome.arrival.output for outcome in run.outcomes)
        totals.append(
            Total(
                policy=policy,
                polite_p99=quantile([ttft for tenant in POLITE[:5] for ttft in run.ttfts(tenant)] or [0.0], 0.99),
                jain=run.jain,
                windows=run.contended,
                tokens_per_second=tokens / run.seconds,
                cached=sum(outcome.cached for outcome in run.outcomes) / prompts,
                preemptions=sum(outcome.preemptions for outcome in run.outcomes),
            )
        )
    return FairnessResult(len(next(iter(runs.values())).outcomes), load, rows, totals)


def markdown(result: FairnessResult) -> str:
    """Return the tables, with their conclusions."""
    policies = [total.policy for total in result.totals]
    tenants = []
    for tenant, group in groupby(sorted(result.rows, key=lambda row: row.tenant), key=lambda row: row.tenant):
        found = {row.policy: row for row in group}
        cells = [f"{found[policy].ttft_p50:.2f} / {found[policy].ttft_p99:.2f}" for policy in policies]
        tenants.append(" | ".join([tenant, str(found[policies[0]].requests), *cells]))
    lines = [
        "# Fairness: a recorded load under each policy",
        "",
        f"{result.requests:,} requests of the Mooncake conversation trace, lengths divided by {_SCALE}, offered at "
        f"{result.load:g} times what the engine can do; half of them are the greedy tenant's, which come in batches. "
        f"Simulated with the real scheduler: a step takes {COST.base * 1000:g} ms, {COST.token * 1000:g} ms per token "
        f"and {COST.row * 1000:g} ms per row; {CONFIG.max_running} rows, {CONFIG.step_tokens} tokens per step, "
        f"{CONFIG.blocks} KV blocks. Made by `python -m bench.fairness`.",
        "",
        "TTFT p50 / p99 in seconds:",
        "",
        *table(" | ".join(["tenant", "requests", *policies]), tenants),
        "",
        *table(
            "policy | TTFT p99, polite and standard (s) | Jain index (windows) | tokens/s | prefix hits | preemptions",
            (
                f"{total.policy} | {total.polite_p99:.2f} | {total.jain:.3f} ({total.windows}) | "
                f"{total.tokens_per_second:,.0f} | {total.cached:.0%} | {total.preemptions}"
                for total in result.totals
            ),
        ),
        "",
        "The Jain index compares, in windows of a second, the services of the standard tenants that had somebody "
        "waiting all the time: 1 is equal, 1/n is one of n having everything.",
        "",
        "![TTFT of polite and greedy requests under each policy](fairness.png)",
    ]
    return "\n".join(lines) + "\n"


def plot(runs: dict[str, Simulation], path: Path) -> None:
    """Plot the shares of polite and of greedy requests that had their first token, over time."""
    with picture(path, columns=2, figsize=(10, 4), sharey=True) as axes:
        for policy, run in runs.items():
            for axis, tenants in zip(axes, (POLITE[:5], (GREEDY,)), strict=True):
                ttfts = sorted(ttft for tenant in tenants for ttft in run.ttfts(tenant))
                shares = [(index + 1) / len(ttfts) for index in range(len(ttfts))]
                # Where classes are few, fcfs and priority are nearly the same: dashes let both be seen.
                axis.plot(ttfts, shares, label=policy, linestyle="--" if policy == "priority" else "-")
        for axis, title in zip(axes, ("polite tenants (standard)", "the greedy tenant"), strict=True):
            axis.set(title=title, xlabel="time to first token (s)", xscale="log")
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("share of requests")
        axes[0].legend()


def _config(policy: PolicyName) -> SchedulerConfig:
    return dataclasses.replace(CONFIG, policy=policy)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--trace", type=Path, help=f"a trace instead of {FILE} in ROUNDHOUSE_BENCH_DATA")
    parser.add_argument("--requests", type=int, default=3000, help="number of its first requests to use")
    parser.add_argument("--load", type=float, default=0.9, help="work offered per work that can be done")
    arguments = parser.parse_args(argv)
    trace = data_file(FILE, arguments.trace)
    runs = replay(read_trace(trace)[: arguments.requests], arguments.load)
    result = summarise(runs, arguments.load)
    publish(arguments.output / "fairness", markdown(result), result)
    plot(runs, arguments.output / "fairness.png")


if __name__ == "__main__":
    main()
