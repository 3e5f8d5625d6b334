"""Which replica gets a request: our rule beside those of others, on recorded traces and on a made-up service.

    ROUNDHOUSE_BENCH_DATA=/path/to/data python -m bench.replicas

reads `mooncake_conversation_trace.jsonl.gz` there, and `mooncake_synthetic_trace.jsonl` if it is there too (Mooncake,
FAST'25: arrival times, lengths and the 512-token blocks of 12,031 and 3,993 prompts), and serves them with simulated
replicas behind the gateway's own choice (`bench.replica_simulation`). Lengths and speeds are divided so that a block of
the workload is one of the engine's; `--full-size` leaves them as they are, which takes ten times as long and changes
nothing but what rounding does. `--engines N` also puts the rules in front of N real engine processes on this
repository's model (`bench.replica_engines`), and `--gateway N` serves a part of the trace through a real gateway
(`bench.replica_gateway`). How the figures depend on the rule's parameters is a table of its own.
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
from bench.replica_engines import measure
from bench.replica_gateway import scaled
from bench.replica_report import Figure, ReplicaResult, ReplicaRow, Workload, markdown, plot
from bench.replica_rules import OURS, RULES
from bench.replica_simulation import ReplicaArrival, ReplicaCost, ReplicaRun, SimulatedPool, ceiling, simulate
from bench.replica_workload import Service, made_up, trace
from bench.report import Environment, options, publish
from engine.cache.prefix_keys import BLOCK_SIZE
from router.replica import ReplicaPolicy

CONVERSATIONS = "mooncake_conversation_trace.jsonl.gz"
SYNTHETIC = "mooncake_synthetic_trace.jsonl"
SEEDS = 5
COMPARED = ("least loaded", "match - load", "llm-d", OURS)
"""Rules that larger pools and smaller caches are served with."""
BETAS = (0.25, 0.5, 1.0, 2.0)
WINDOWS = (1.0, 2.0, 8.0)
SPEEDS = (0.5, 0.8, 1.2)


class Scenario(msgspec.Struct):
    """A workload, and the replicas that serve it."""

    name: str
    arrivals: Callable[[int], list[ReplicaArrival]]
    """Makes the arrivals from a seed."""
    sizes: SimulatedPool
    rules: Sequence[str] = tuple(RULES)

    def runs(self, rule: str, seeds: int, policy: ReplicaPolicy, speed: float = 1.0) -> list[ReplicaRun]:
        sizes = dataclasses.replace(self.sizes, policy=policy)
        return [
            simulate(faster(self.arrivals(seed), speed), RULES[rule](), sizes, seed) for seed in range(1, seeds + 1)
        ]

    def row(self, rule: str, seeds: int, policy: ReplicaPolicy = ReplicaPolicy(), speed: float = 1.0) -> ReplicaRow:  # noqa: B008  it is frozen
        runs = self.runs(rule, seeds, policy, speed)

        def figure(of: Callable[[ReplicaRun], float]) -> Figure:
            return Figure.of([of(run) for run in runs])

        return ReplicaRow(
            rule=rule,
            hit_ratio=figure(lambda run: run.hit_ratio),
            imbalance=figure(lambda run: run.imbalance),
            work_imbalance=figure(lambda run: run.work_imbalance),
            ttft_p50=figure(lambda run: statistics.median(run.ttfts)),
            ttft_p99=figure(lambda run: quantile(run.ttfts, 0.99)),
        )


def faster(arrivals: Sequence[ReplicaArrival], speed: float) -> list[ReplicaArrival]:
    """Return the arrivals in less time."""
    return [dataclasses.replace(each, at=each.at / speed) for each in arrivals]


def smaller(scenario: Scenario) -> Scenario:
    """Return a scenario with lengths and speeds divided so that a block of it is one of the engine's."""
    sizes, scale = scenario.sizes, scenario.sizes.block // BLOCK_SIZE

    def arrivals(seed: int) -> list[ReplicaArrival]:
        return [
            ReplicaArrival(each.at, each.blocks, max(1, each.prompt // scale), max(1, round(each.answer / scale)))
            for each in scenario.arrivals(seed)
        ]

    cost = ReplicaCost(sizes.cost.prefill / scale, sizes.cost.decode / scale)
    sizes = dataclasses.replace(sizes, block=BLOCK_SIZE, cost=cost, most_answer=sizes.most_answer // scale)
    return msgspec.structs.replace(scenario, arrivals=arrivals, sizes=sizes)


def scenarios(traces: dict[str, list[ReplicaArrival]], service: Service) -> list[Scenario]:
    """Return each workload on 8 replicas, and the traces on larger pools and on smaller caches."""
    found = []
    for name, recorded in traces.items():
        busy = faster(recorded, 4.0)
        found.append(Scenario(name, _always(recorded), SimulatedPool()))
        found += [Scenario(name, _always(recorded), SimulatedPool(8, capacity), COMPARED) for capacity in (1000, 300)]
        found += [
            Scenario(f"{name}, four times as fast", _always(busy), SimulatedPool(32, capacity), COMPARED)
            for capacity in (3000, 300)
        ]
    sizes = SimulatedPool(capacity=6000, block=service.block)
    return [*found, Scenario("the made-up service", lambda seed: made_up(service, seed), sizes)]


def _always(arrivals: list[ReplicaArrival]) -> Callable[[int], list[ReplicaArrival]]:
    return lambda seed: arrivals


def run(
    found: Sequence[Scenario], seeds: int, *, brief: bool = False
) -> tuple[ReplicaResult, dict[str, dict[str, list[float]]]]:
    """Return all tables, and for the plot the times to first token by workload and rule."""
    workloads, sensitivity, speeds, times = [], {}, {}, {}
    for scenario in found:
        first, sizes = scenario.arrivals(1), scenario.sizes
        rows = [scenario.row(rule, seeds) for rule in scenario.rules]
        workloads.append(
            Workload(scenario.name, sizes.replicas, sizes.capacity, len(first), ceiling(first), rows),
        )
        print(workloads[-1], flush=True)
        if scenario.rules == COMPARED:
            continue
        times[scenario.name] = {rule: scenario.runs(rule, 1, ReplicaPolicy())[0].ttfts for rule in scenario.rules}
        if brief:
            continue
        sensitivity[scenario.name] = [
            (beta, window, scenario.row(OURS, 1, ReplicaPolicy(beta=beta, window=window)))
            for beta in BETAS
            for window in WINDOWS
        ]
        speeds[scenario.name] = [(speed, [scenario.row(rule, 1, speed=speed) for rule in COMPARED]) for speed in SPEEDS]
    return ReplicaResult(Environment.here(), seeds, workloads, sensitivity, speeds), times


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--trace", type=Path, help=f"a trace instead of {CONVERSATIONS} in ROUNDHOUSE_BENCH_DATA")
    parser.add_argument("--synthetic", type=Path, help=f"a trace instead of {SYNTHETIC} there")
    parser.add_argument("--requests", type=int, default=12_031, help="number of a trace's first requests to use")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs per row")
    parser.add_argument("--full-size", action="store_true", help="leave lengths and speeds as they are")
    parser.add_argument("--brief", action="store_true", help="leave out the tables by beta, window and load")
    parser.add_argument("--engines", type=int, default=0, help="also measure with so many real engines")
    parser.add_argument("--gateway", type=int, default=0, help="also serve through a gateway with so many real engines")
    arguments = parser.parse_args(argv)
    recorded = {"the conversation trace": trace(data_file(CONVERSATIONS, arguments.trace), arguments.requests)}
    try:
        recorded["the synthetic trace"] = trace(data_file(SYNTHETIC, arguments.synthetic), arguments.requests)
    except SystemExit as absent:
        print(absent)
    found = scenarios(recorded, Service(seconds=600.0 * min(1.0, arguments.requests / 12_031)))
    found = found if arguments.full_size else [smaller(each) for each in found]
    result, times = run(found, arguments.seeds, brief=arguments.brief)
    if arguments.engines:
        result.measured = asyncio.run(measure(arguments.engines, RULES))
    if arguments.gateway:
        part = scaled(recorded["the conversation trace"])
        result.served = asyncio.run(replica_gateway.measure(arguments.gateway, part))
    publish(arguments.output / "replicas", markdown(result), result)
    plot(times, arguments.output / "replicas.png")


if __name__ == "__main__":
    main()
