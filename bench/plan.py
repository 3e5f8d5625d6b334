"""What `roundhouse plan` predicts beside what an engine does: TTFT, ITL and saturation, at several loads and mixes.

    XDG_DATA_HOME=... python -m bench.plan      results in bench/results/plan.md (fifty minutes)

times the steps of an engine as `roundhouse plan probe` does, fits a cost, and asks the planner for the rate that a
replica bears. Then the same requests, which come at random, are served by the engine, model and all, twice, and by the
planner's simulation: how far two measurements are apart says how near a prediction can be. A machine that others share
is not always as fast: a second engine's steps are timed in turns with each load, while the clock of the load stands
still, and the load's cost is fitted to those; they also say what the next load is a share of. The models are this
repository's and, if it was pulled, the catalogue's smallest.

Seconds are by default those of the process' CPU, of which there is one thread: on a machine with other work they say
what the engine needs, and waiting for the machine does not count. `--clock wall` counts that too, for a quiet machine.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from bench.plan_layers import markdown as layer_lines
from bench.report import Environment, options, publish, table
from engine.cache.blocks import BLOCK_SIZE
from engine.scheduling.config import SchedulerConfig
from engine.step_times import TimedEngine, TimedStep
from engine.wire import Generate, SamplingParams
from gateway.models.store import ModelStore, default_folder
from scale.planning.bounds import LatencyAims, ReplicaBounds
from scale.planning.kinds import ProbedEngine
from scale.planning.replay import WARM_UP, Percentiles, replay
from scale.planning.step_cost import Pace
from scale.planning.traffic import Length, PlannedTraffic
from scale.simulation import Arrival

if TYPE_CHECKING:
    from engine.core import EngineCore

DEMO = Path(__file__).parent.parent / "deploy" / "demo" / "model"
REAL = "smollm2-135m"
MOST_REQUESTS = 5000
"""Of a cell."""
CONFIG = SchedulerConfig(blocks=2048, step_tokens=512, max_running=32, max_waiting=MOST_REQUESTS, policy="fcfs")
MIXES = {
    "chat": PlannedTraffic(rate=1, input=128, output=48, shared=0.5),
    "documents": PlannedTraffic(rate=1, input=256, output=16),
}
LOADS = (0.5, 0.8, 1.0)
AIMS = LatencyAims(ttft=1e9, itl=1e9)
"""None: a replica's largest rate is that at which its rows or its cache are full."""
TURN = 0.25
"""Seconds of a load, after which steps are timed for as long."""
WITHIN = 0.10
"""Largest distance that a prediction should have."""
Clock = Literal["cpu", "wall"]
_CLOCKS: dict[Clock, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}


class ServedTimes(msgspec.Struct, frozen=True):
    """Seconds of requests that count, and tokens of answers per second of all."""

    ttft: Percentiles
    itl: Percentiles
    tokens_per_second: float

    def beside(self, other: ServedTimes) -> dict[str, float]:
        """Return how far each figure is from another's, relative to that."""
        pairs = {
            "TTFT p50": (self.ttft.p50, other.ttft.p50),
            "TTFT p95": (self.ttft.p95, other.ttft.p95),
            "ITL p50": (self.itl.p50, other.itl.p50),
            "ITL p95": (self.itl.p95, other.itl.p95),
            "tokens/s": (self.tokens_per_second, other.tokens_per_second),
        }
        return {name: own / theirs - 1 for name, (own, theirs) in pairs.items()}


class PlanCell(msgspec.Struct, frozen=True):
    """One mix at one load."""

    mix: str
    load: str
    requests: int
    rate: float
    measured: ServedTimes
    predicted: ServedTimes
    again: ServedTimes
    """The same requests, served a second time."""


class PlanModel(msgspec.Struct, frozen=True):
    """One engine, what was fitted to it, and its cells."""

    name: str
    probed: ProbedEngine
    seconds: float
    """Time for which steps were timed at first."""
    cells: list[PlanCell]


class PlanResult(msgspec.Struct, frozen=True):
    environment: Environment
    clock: Clock
    models: list[PlanModel]


class SkippingClock:
    """A clock that goes on at once to a later time where an engine would wait for it, and may stand still."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._skipped = -clock()

    def __call__(self) -> float:
        return self._clock() + self._skipped

    def skip_to(self, at: float) -> None:
        self._skipped += max(0.0, at - self())

    @contextmanager
    def stopped(self) -> Iterator[None]:
        stopped_at = self._clock()
        try:
            yield
        finally:
            self._skipped -= self._clock() - stopped_at


class MeasuredEngine:
    """An engine of this process, with one thread, whose clock is ours, and another one like it to time steps with."""

    def __init__(self, model: Path, clock: Clock, seconds: float) -> None:
        """Args: seconds: time for which steps are timed at first, and in each round meanwhile."""
        import torch

        from engine.server.timing import StepTimer

        torch.set_num_threads(1)
        self._now = _CLOCKS[clock]
        self._clock = SkippingClock(self._now)
        self._core = _core_of(model, self._clock)
        self._timer = StepTimer(_core_of(model, self._now), self._now)
        self._seconds = seconds
        self._runs = 0
        gc.collect()
        gc.freeze()

    def time_steps(self) -> TimedEngine:
        return self._timer.engine(self._seconds, threads=1)

    def serve(self, arrivals: Sequence[Arrival]) -> tuple[ServedTimes, list[TimedStep]]:
        """Serve requests that come when they say, with nothing in the prefix cache that is theirs.

        Returns how that went, and the steps that were timed in turns with it.
        """
        self._runs += 1
        requests = [self._request(index, arrival) for index, arrival in enumerate(arrivals)]
        tokens: list[list[float]] = [[] for _ in arrivals]
        rounds, timed, again = self._timer.run(self._seconds), list[TimedStep](), False
        clock, core, came = self._clock, self._core, self._clock()
        index, turn = 0, self._now()
        while index < len(arrivals) or not core.idle:
            if core.idle:
                clock.skip_to(came + arrivals[index].at)
            while index < len(arrivals) and came + arrivals[index].at <= clock():
                core.add(requests[index])
                index += 1
            outputs = core.step()
            now = clock()
            for output in outputs:
                tokens[int(output.id)] += [now] * len(output.tokens)
            if self._now() - turn >= TURN:
                with clock.stopped():
                    while self._now() - turn < 2 * TURN:
                        step = next(rounds, None)
                        if step is None:
                            rounds, again = self._timer.run(self._seconds), True
                        else:
                            timed.append(step)
                turn = self._now()
        if not again:
            timed += rounds  # a cost needs steps of all sizes
        rounds.close()
        first = int(WARM_UP * len(arrivals))
        counted = list(zip(arrivals, tokens, strict=True))[first:]
        gaps = [later - earlier for _, times in counted for earlier, later in pairwise(times)]
        served = ServedTimes(
            ttft=Percentiles.of([times[0] - came - arrival.at for arrival, times in counted]),
            itl=Percentiles.of(gaps),
            tokens_per_second=sum(map(len, tokens)) / (max(times[-1] for times in tokens) - came - arrivals[0].at),
        )
        return served, timed

    def _request(self, index: int, arrival: Arrival) -> Generate:
        sampling = SamplingParams(max_tokens=arrival.output, ignore_eos=True, seed=index)
        vocabulary = self._core.model.vocabulary
        prompt = [(token * 2_654_435_761 & 0xFFFF_FFFF) // 97 % vocabulary for token in arrival.prompt]
        return Generate(str(index), prompt, sampling, salt=str(self._runs).encode())


def _core_of(model: Path, clock: Callable[[], float]) -> EngineCore:
    from engine.core import EngineCore
    from engine.execution.runner import ModelRunner
    from engine.execution.warm_up import warm_up

    runner = ModelRunner(model, blocks=CONFIG.blocks)
    core = EngineCore(runner, runner.info, CONFIG, clock=clock)
    warm_up([runner], CONFIG)
    return core


def arrivals_of(traffic: PlannedTraffic, count: int, rate: float | None, context: int) -> list[Arrival]:
    """Draw requests that come at a rate, or all at once."""
    drawn = list(traffic.lengths(10 * count / (rate or 1.0), rate=rate or 1.0))[:count]
    lengths = [Length(each.at if rate else 0.0, each.prompt, each.answer) for each in drawn]
    lengths = [each for each in lengths if each.prompt + each.answer < context]
    return [
        Arrival(each.at, "", prompt, each.answer)
        for each, prompt in zip(lengths, traffic.prompts(lengths), strict=True)
    ]


def measure(name: str, model: Path, *, clock: Clock, requests: int, load_seconds: float, seconds: float) -> PlanModel:
    """Serve each mix at each load, with steps timed meanwhile, and predict the same."""
    engine = MeasuredEngine(model, clock, seconds)
    first = engine.time_steps()
    probed, steps, cells = ProbedEngine.of(first), [*first.steps], []
    for mix, traffic in MIXES.items():
        for load in (*LOADS, None):
            most = ReplicaBounds(probed.cost, probed.limits, traffic, AIMS).most().rate
            rate = None if load is None else load * most
            count = min(MOST_REQUESTS, max(requests, int((rate or most) * load_seconds)))
            arrivals = arrivals_of(traffic, count, rate, min(probed.context, CONFIG.blocks * BLOCK_SIZE))
            label = "all at once" if load is None else f"{load:.0%}"
            times, timed = engine.serve(arrivals)
            steps += timed
            probed = ProbedEngine.of(msgspec.structs.replace(first, steps=timed))
            result = replay(arrivals, CONFIG, probed.cost, AIMS, context=probed.context)
            predicted = ServedTimes(result.ttft, result.itl, result.tokens_per_second)
            again, more = engine.serve(arrivals)
            steps += more
            cells.append(PlanCell(mix, label, len(arrivals), rate or 0.0, times, predicted, again))
            print(f"{name}, {mix}, {label}: {_line(cells[-1])}", flush=True)
    probed = ProbedEngine.of(msgspec.structs.replace(first, steps=steps))
    pace = probed.cost.pace
    mean = Pace.of(pace.typical[-1:], pace.taken[-1:])  # the whole pace is of some 20,000 steps
    cost = msgspec.structs.replace(probed.cost, pace=mean)
    return PlanModel(name, msgspec.structs.replace(probed, cost=cost), seconds, cells)


def markdown(result: PlanResult) -> str:
    seconds = "of the process' CPU" if result.clock == "cpu" else "of the clock"
    cells = [cell for model in result.models for cell in model.cells]
    predicted = [cell.predicted.beside(cell.measured) for cell in cells]
    repeated = [cell.again.beside(cell.measured) for cell in cells]
    lines = [
        "# What the planner predicts",
        "",
        f"An engine with one thread beside the planner's simulation of it; seconds {seconds}. *Load* is the rate over "
        "the largest one that the bounds give, with requests that come at random; *all at once* is saturation. "
        "Each cell: measured, and how far from it are the prediction and a second measurement of the same requests. "
        f"A fifth of the requests warms up and does not count. {_within(predicted)} predictions are within "
        f"{WITHIN:.0%}, and {_within(repeated)} second measurements. Made by `python -m bench.plan`.",
    ]
    for model in result.models:
        probed = model.probed
        lines += [
            "",
            f"## {model.name}",
            "",
            f"Steps were timed for {model.seconds:.0f} s at first, and in turns with each load. The median distance of "
            f"a cost for all of them is {probed.cost.error:.1%}; under random loads steps took "
            f"{probed.cost.pace.mean:.2f} times what is typical of them.",
            "",
            *table(
                "mix | load | requests/s | TTFT p50 (ms) | TTFT p95 (ms) | ITL p50 (ms) | ITL p95 (ms) | tokens/s",
                map(_line, model.cells),
                words=2,
            ),
        ]
    lines += [
        "",
        "## Layers on GPUs",
        "",
        "The roofline for devices without a measurement, beside what Vidur (Agrawal et al., 2024) has measured: one "
        "layer of Llama 2 in bf16 without attention's reading of keys and values, steps of 1 to 4,096 tokens.",
        "",
        *layer_lines(),
        "",
        f"- {result.environment}",
        "",
    ]
    return "\n".join(lines)


def _within(distances: Sequence[dict[str, float]]) -> str:
    """Say how many distances are as small as they should be."""
    values = [value for each in distances for value in each.values()]
    return f"{sum(abs(value) <= WITHIN for value in values)} of {len(values)}"


def _line(cell: PlanCell) -> str:
    served, errors = cell.measured, cell.predicted.beside(cell.measured)
    repeated = cell.again.beside(served)
    measured = {
        "TTFT p50": f"{served.ttft.p50 * 1e3:,.1f}",
        "TTFT p95": f"{served.ttft.p95 * 1e3:,.1f}",
        "ITL p50": f"{served.itl.p50 * 1e3:,.2f}",
        "ITL p95": f"{served.itl.p95 * 1e3:,.2f}",
        "tokens/s": f"{served.tokens_per_second:,.0f}",
    }
    cells = (f"{measured[name]} ({error:+.0%}, again {repeated[name]:+.0%})" for name, error in errors.items())
    return f"{cell.mix} | {cell.load} | {cell.rate:.2f} | {' | '.join(cells)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--clock", choices=list(_CLOCKS), default="cpu", help="whose seconds count")
    parser.add_argument("--requests", type=int, default=60, help="requests of a cell, at least")
    parser.add_argument("--load-seconds", type=float, default=30.0, help="seconds of a cell, at least")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds for which steps are timed at first")
    parser.add_argument("--model", action="append", type=Path, help="other models than the two")
    chosen = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    models = {model.name: model for model in chosen.model or ()} or {"this repository's model": DEMO, **_real()}
    measured = [
        measure(
            name,
            path,
            clock=chosen.clock,
            requests=chosen.requests,
            load_seconds=chosen.load_seconds,
            seconds=chosen.seconds,
        )
        for name, path in models.items()
    ]
    result = PlanResult(Environment.here(), chosen.clock, measured)
    publish(chosen.output / "plan", markdown(result), result)


def _real() -> dict[str, Path]:
    """Return the catalogue's smallest model, if it was pulled."""
    store = ModelStore(default_folder())
    model = store.model(REAL)
    return {} if model is None else {REAL: store.path(model)}


if __name__ == "__main__":
    main()
