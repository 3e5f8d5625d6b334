"""Replays recorded load through simulated pools, sized by our policy and by the rules that others use.

    python -m bench.autoscale                        everything: about a quarter of an hour on one core
    python -m bench.autoscale --only conversation    one load

Traces run through the real scheduler of each replica (`scale/fleet.py`), the second of two weeks of recorded rates
through amounts (`bench/autoscale_fluid.py`), which an hour of the same load through the real scheduler checks. Files
are read from the folder ROUNDHOUSE_BENCH_DATA (bench/README.md names them); what is not there is left out and named.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from bench.autoscale_fluid import Fluid, FluidLoad
from bench.autoscale_future import ahead, by_future, needed
from bench.autoscale_report import FUTURE, IN_FLIGHT, WORK, AutoscaleResult, AutoscaleRow, FluidCheck, markdown, plot
from bench.autoscale_rules import (
    by_busy,
    by_in_flight,
    by_utilisation,
    by_waiting,
    by_work,
    constant,
)
from bench.autoscale_workload import (
    Hardware,
    Series,
    arrivals,
    gpu,
    measured_hardware,
    measured_steps,
    one_after_another,
    week,
)
from bench.data import data_file
from bench.measure import quantile
from bench.report import RESULTS, options, publish
from engine.scheduling.config import SchedulerConfig
from load.traces import TracePoint, read_trace
from scale.capacity import MeasuredStep
from scale.fleet import Fleet, FleetConfig, FleetSize, Sizer

TTFT = 2.0
TICK = 2.0
MEAN_REPLICAS = 8.0
"""Mean work of a week's load, in replicas."""
STARTS = (180.0, 30.0)
UTILISATION = 0.85
"""Setting of our policy that is drawn and checked."""
HINDSIGHT = (1.0, 0.85)
"""Settings of the rule that knows the load beforehand."""
CONVERSATION, CODE, MOONCAKE = (
    "traces/azure_2023_conv.csv.gz",
    "traces/azure_2023_code.csv.gz",
    "mooncake_conversation_trace.jsonl.gz",
)
RATES = "traces/servegen_language_rates.json"
LENGTHS = {"conversation": (1155.0, 211.0), "code": (2048.0, 28.0)}
"""Mean tokens of the prompts and answers of the Azure traces."""

Served = tuple[float, float, list[FleetSize]]
"""Share of requests with TTFT in time, mean number of paid replicas, and the sizes over time."""


class Setting(NamedTuple):
    """A rule with its parameter."""

    rule: str
    value: float
    make: Callable[[float], Sizer]
    """Makes it anew, for a parameter."""
    replicas: int = 0
    """Replicas that it has at the beginning, if these are more than others have."""


def settings(peak: int, start: float, *, few: bool) -> Iterator[Setting]:
    """Yield the rules to be compared. `few`: fewer settings of each, for a load that takes long."""
    slow = start == STARTS[0]
    for share in (UTILISATION,) if few else (0.75, UTILISATION, 0.95) if slow else (0.75, UTILISATION, 0.9, 0.95):
        yield Setting(WORK, share, partial(by_work, start_seconds=start))
    shares = (0.1, 0.75) if few else (0.05, 0.1, 0.4, 0.6, 0.75, 0.9) if slow else (0.4, 0.6, 0.75)
    for share in () if few and not slow else shares:
        yield Setting(IN_FLIGHT, share, by_in_flight)
    if slow:
        yield Setting("static, p99.9 peak", peak, constant)
        yield Setting("KEDA, waiting", 5, by_waiting)
        if not few:
            yield Setting("HPA, utilisation", 0.8, by_utilisation)
            yield Setting("HPA, busy", 0.8, by_busy)


def with_hindsight(needs: Series, start: float) -> Iterator[Setting]:
    """Yield the rules that know how many replicas each look needs."""
    for share in HINDSIGHT:
        begin = math.ceil(needs[: ahead(start)].max() / share)
        yield Setting(FUTURE, share, partial(by_future, needs=needs, start_seconds=start), begin)
    if start == STARTS[0]:
        largest = math.ceil(needs.max())
        yield Setting("static, largest burst", largest, constant, largest)


@dataclass(slots=True)
class PoolLoad:
    """One load to be served."""

    name: str
    config: FleetConfig
    peak: int
    """Replicas that hold the work of the busiest minute in a thousand."""
    serve: Callable[[FleetConfig, Sizer], Served]
    fluid: bool = False
    sizes: list[FleetSize] = field(default_factory=list)
    """Sizes over time under our policy, with the slower start."""

    def rows(self) -> Iterator[AutoscaleRow]:
        for start in STARTS:
            for setting in settings(self.peak, start, few=not self.fluid):
                yield self._row(setting, start)
            for setting in with_hindsight(needed(self.sizes, TTFT), start):
                yield self._row(setting, start)

    def _row(self, setting: Setting, start: float) -> AutoscaleRow:
        config = replace(self.config, start_seconds=start, replicas=max(self.config.replicas, setting.replicas))
        attained, replicas, sizes = self.serve(config, setting.make(setting.value))
        if (setting.rule, setting.value, start) == (WORK, UTILISATION, STARTS[0]):
            self.sizes = sizes
        return AutoscaleRow(
            load=self.name,
            fluid=self.fluid,
            rule=setting.rule,
            setting=setting.value,
            start_seconds=start,
            attained=attained,
            replicas=replicas,
            offered=sum(size.offered for size in sizes) / len(sizes),
            changes=sum(one.ready != other.ready for one, other in pairwise(sizes)),
        )


def pool_config(hardware: Hardware, prompt: float, output: float, *, shared: bool) -> FleetConfig:
    """Return a pool of replicas of 32 slots and memory for a million tokens; `prompt` and `output` are means."""
    coarse = hardware.coarse
    return FleetConfig(
        SchedulerConfig(blocks=(1 << 16) // coarse, step_tokens=2048 // coarse, max_running=32, max_waiting=1_000_000),
        hardware.cost,
        hardware.kv_token_bytes,
        prompt_tokens=prompt / coarse,
        output_tokens=output / coarse,
        shared=shared,
    )


def trace_load(name: str, requests: Sequence[TracePoint], copies: int, hardware: Hardware) -> PoolLoad:
    """Return copies of a trace, to be run by the real scheduler of each replica."""
    coming = arrivals(requests, copies)
    prompt = sum(each.input_tokens for each in requests) / len(requests)
    output = sum(each.output_tokens for each in requests) / len(requests)
    shared = bool(requests[0].blocks)
    config = pool_config(hardware, prompt, output, shared=shared)
    minutes: defaultdict[int, float] = defaultdict(float)
    for each in coming:
        minutes[int(each.at // 60)] += config.capacity.work(len(each.prompt), each.output) / 60
    config = replace(config, replicas=math.ceil(sum(minutes[at] for at in range(10)) / 10 / 0.85) + 1)
    # A prompt may be so long that it alone takes longer than the aim.
    alone = [hardware.cost.token * len(each.prompt) if shared else 0.0 for each in coming]

    def serve(config: FleetConfig, sizer: Sizer) -> Served:
        run = Fleet(config, sizer).serve(coming)
        good = sum(each.ttft <= TTFT + extra for each, extra in zip(run.outcomes, alone, strict=True))
        return good / len(coming), run.mean_replicas, run.sizes

    return PoolLoad(name, config, math.ceil(quantile(list(minutes.values()), 0.999)), serve)


def week_load(name: str, rates: Sequence[float], hardware: Hardware, code: Series | None = None) -> PoolLoad:
    """Return a week of rates with the lengths of conversations. `code`: share of code completions, for each tick."""
    config = pool_config(hardware, *LENGTHS["conversation"], shared=False)
    ticks = len(rates) // 2 * round(600 / TICK) - round(600 / TICK)
    code = np.zeros(ticks) if code is None else code[:ticks]
    prompts, outputs = (
        ((1 - code) * LENGTHS["conversation"][at] + code * LENGTHS["code"][at]) / hardware.coarse for at in (0, 1)
    )
    work = np.array([config.capacity.work(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)])
    requests = week(rates, MEAN_REPLICAS / float(work.mean()), TICK)
    load = FluidLoad(TICK, requests, prompts, outputs)
    minute = round(60 / TICK)
    minutes = (requests * work)[: ticks // minute * minute].reshape(-1, minute).sum(axis=1) / 60
    config = replace(config, replicas=math.ceil(float(minutes[:10].mean()) / 0.85) + 1)

    def serve(config: FleetConfig, sizer: Sizer) -> Served:
        run = Fluid(config, sizer, TTFT).serve(load)
        return run.attained, run.mean_replicas, run.sizes

    return PoolLoad(name, config, math.ceil(quantile(minutes.tolist(), 0.999)), serve, fluid=True)


def check(rates: Sequence[float], lengths: Sequence[TracePoint], config: FleetConfig, hours: float) -> FluidCheck:
    """Run the steepest hours of a week through amounts and through the real scheduler."""
    mean = MEAN_REPLICAS / config.capacity.work(config.prompt_tokens, config.output_tokens)
    whole, ticks = week(rates, mean, TICK), round(hours * 3600 / TICK)
    half, sums = ticks // 2, np.concatenate([[0.0], np.cumsum(whole)])
    rises = sums[2 * half :] - 2 * sums[half:-half] + sums[: -2 * half]
    requests = whole[(first := int(np.argmax(rises))) : first + ticks]
    load = FluidLoad(TICK, requests, np.full(ticks, config.prompt_tokens), np.full(ticks, config.output_tokens))
    chance = np.random.default_rng(2)
    times = np.sort(np.repeat(np.arange(ticks), requests.astype(int)) + chance.random(int(requests.sum()))) * TICK
    drawn = chance.integers(0, len(lengths), len(times))
    requested = zip(times.tolist(), drawn.tolist(), strict=True)
    coming = arrivals([msgspec.structs.replace(lengths[which], start=at) for at, which in requested], 1)
    begin = float(requests[:150].mean()) / TICK * MEAN_REPLICAS / mean
    config = replace(config, start_seconds=STARTS[0], replicas=math.ceil(begin / UTILISATION) + 1)
    fluid = Fluid(config, by_work(UTILISATION, STARTS[0]), TTFT).serve(load)
    real = Fleet(config, by_work(UTILISATION, STARTS[0])).serve(coming)
    return FluidCheck(
        requests=len(coming),
        hours=hours,
        attained=(fluid.attained, real.attained(TTFT)),
        replicas=(fluid.mean_replicas, real.mean_replicas),
    )


def loads(steps: Sequence[MeasuredStep], kv_bytes: int, only: Sequence[str], missing: list[str]) -> Iterator[PoolLoad]:
    """Yield the loads whose files are there; the others are added to `missing`."""

    def wanted(name: str, *files: str) -> bool:
        absent = [file for file in files if not is_there(file)]
        missing.extend(file for file in absent if file not in missing)
        return not absent and (not only or name in only)

    measured = measured_hardware(steps, kv_bytes)
    if wanted("conversation", CONVERSATION):
        yield trace_load("conversation", read_trace(data_file(CONVERSATION)), 4, measured)
    if wanted("code", CODE):
        yield trace_load("code", read_trace(data_file(CODE)), 6, measured)
    if wanted("conversation to code", CONVERSATION, CODE):
        both = one_after_another(read_trace(data_file(CONVERSATION)), read_trace(data_file(CODE)))
        yield trace_load("conversation to code", both, 4, measured)
    if wanted("mooncake", MOONCAKE):
        yield trace_load("mooncake", read_trace(data_file(MOONCAKE)), 2, measured)
    if not wanted("", RATES) and RATES in missing:
        return
    rates = msgspec.json.decode(data_file(RATES).read_bytes(), type=dict[str, list[float]])
    measured, names = measured_hardware(steps, kv_bytes, coarse=1), list(rates)
    if wanted(names[0]):
        yield week_load(names[0], rates[names[0]], measured)
    for name in names:
        if wanted(f"{name} on GPUs"):
            yield week_load(f"{name} on GPUs", rates[name], gpu())
    if wanted(name := f"{names[0]} on GPUs, lengths shift"):
        hours = np.arange(len(rates[names[0]]) // 2 * round(600 / TICK)) * TICK / 3600
        yield week_load(name, rates[names[0]], gpu(), 0.5 - 0.5 * np.cos(2 * np.pi * hours / 24))


def is_there(file: str) -> bool:
    try:
        data_file(file)
    except SystemExit:
        return False
    return True


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="LOAD", help="loads to run instead of all")
    parser.add_argument("--merge", nargs="+", default=[], type=Path, metavar="FILE", help="add results of other runs")
    parser.add_argument("--check-hours", type=float, default=0.5, help="hours on which amounts are checked; 0: none")
    arguments = parser.parse_args(argv)
    steps, kv_bytes = measured_steps(RESULTS / "real-avx512.json")
    result = AutoscaleResult(rows=[], days={}, check=None, missing=[])
    for file in arguments.merge:
        result = result.with_those_of(msgspec.json.decode(file.read_bytes(), type=AutoscaleResult))
    for load in loads(steps, kv_bytes, arguments.only, result.missing):
        for row in load.rows():
            print(row.line(), flush=True)
            result.rows.append(row)
        result.days[load.name] = [
            (round(each.time / 3600, 2), each.ready, round(each.offered, 2)) for each in load.sizes[: 2 * 8640 : 36]
        ]
    if arguments.check_hours and not result.missing:
        rates = msgspec.json.decode(data_file(RATES).read_bytes(), type=dict[str, list[float]])
        config = pool_config(measured_hardware(steps, kv_bytes), *LENGTHS["conversation"], shared=False)
        lengths = read_trace(data_file(CONVERSATION))
        result.check = check(next(iter(rates.values())), lengths, config, arguments.check_hours)
    if not result.rows:
        raise SystemExit(f"not run: set ROUNDHOUSE_BENCH_DATA to a folder that holds {', '.join(result.missing)}")
    publish(arguments.output / "autoscale", markdown(result, steps), result)
    plot(result, arguments.output / "autoscale.png")


if __name__ == "__main__":
    main()
