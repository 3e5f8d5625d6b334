"""A plan for one model: memory, batch, latencies, replicas and money, each figure with the reason for it.

Bounds come first (`scale/planning/bounds.py`), then the load runs through the engine's own scheduler
(`scale/planning/replay.py`), and replicas are added until the aims are met there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from engine.cache.blocks import BLOCK_SIZE
from engine.scheduling.config import SchedulerConfig
from scale.decimals import plain
from scale.planning.bounds import EngineLimits, LatencyAims, ReplicaBounds, SteadyState, replicas_for
from scale.planning.kinds import PlanFigure, ReplicaKind
from scale.planning.replay import ReplayResult, replay
from scale.planning.traffic import Length, PlannedTraffic
from scale.simulation import Arrival

_HOURS = 730
"""Hours of a month."""
_REQUESTS = 800
"""Requests that are simulated per replica."""
_SHORTEST = 60.0
"""Seconds that are simulated at least."""
_IDLE = 10
"""Times the replicas that bounds give with which hardly any request meets another one."""


class CapacityPlan(Struct, frozen=True, kw_only=True):
    """A plan for one model on one kind of replica."""

    model: str
    hardware: str
    replicas: int
    """Replicas to run, spare ones included."""
    binds: str
    """What allows a replica no more."""
    figures: list[PlanFigure]
    simulated: ReplayResult | None = None

    def value(self, name: str) -> float:
        """
        Raises:
            KeyError: there is no such figure.
        """
        return {figure.name: figure.value for figure in self.figures}[name]


def plan(
    kind: ReplicaKind,
    traffic: PlannedTraffic,
    aims: LatencyAims,
    *,
    spare: int = 1,
    trace: Sequence[Length] = (),
    simulated: bool = True,
) -> CapacityPlan:
    """Plan replicas for a load.

    Args:
        spare: replicas beyond what the load needs; one bears the loss of a replica.
        trace: requests to simulate instead of random ones with the load's means.
        simulated: whether to run the load through the scheduler, too.

    Raises:
        ValueError: a replica cannot serve the load within the aims at all.
    """
    bounds = ReplicaBounds(kind.cost, kind.limits, traffic, aims)
    most = bounds.most()
    offered = traffic.rate / most.rate
    needed = replicas_for(offered)
    why = f"{plain(offered, 3)} busy: /0.85 and half its root for chance"
    result = None
    if simulated:
        needed, result, tried = _by_simulation(kind, traffic, aims, trace, needed)
        why += f"; {tried}"
    figures = [
        *kind.memory,
        PlanFigure(
            "fits", bounds.fits, "requests", f"KV of {bounds.request_tokens:.0f} tokens each that are not shared"
        ),
        *_most(most, traffic),
        PlanFigure("replicas", needed + spare, "", f"{why}; {spare} spare"),
        *_loaded(bounds.at(traffic.rate / needed)),
        *([] if result is None else _simulated(result, aims)),
        *_money(kind.price, needed + spare, traffic),
    ]
    return CapacityPlan(
        model=kind.model,
        hardware=kind.hardware,
        replicas=needed + spare,
        binds=most.binds,
        figures=figures,
        simulated=result,
    )


def _by_simulation(
    kind: ReplicaKind, traffic: PlannedTraffic, aims: LatencyAims, trace: Sequence[Length], analytic: int
) -> tuple[int, ReplayResult, str]:
    """Return the fewest replicas, to 2 %, whose share of the load meets the aims, from the analytic number upwards."""
    result = simulate_replica(kind, traffic, aims, analytic, trace)
    if result.within >= aims.share:
        return analytic, result, "the simulation agrees"
    low, high = analytic, _IDLE * analytic
    result = simulate_replica(kind, traffic, aims, high, trace)
    if result.within < aims.share:
        raise ValueError(
            f"even in idle replicas only {result.within:.1%} of the requests are within {plain(aims.ttft)} s and "
            f"{plain(aims.itl)} s per token: prompts of this length need a faster device, or other aims"
        )
    while high - low > max(1, low // 50):
        # More than a quarter is rarely missing.
        middle = low + max(1, min((high - low) // 2, low // 4))
        tried = simulate_replica(kind, traffic, aims, middle, trace)
        if tried.within >= aims.share:
            high, result = middle, tried
        else:
            low = middle
    return high, result, f"the simulation adds {high - analytic}"


def simulate_replica(
    kind: ReplicaKind, traffic: PlannedTraffic, aims: LatencyAims, replicas: int, trace: Sequence[Length] = ()
) -> ReplayResult:
    """Run one replica's share of a load through the scheduler; a trace's requests go to replicas in turn."""
    rate = traffic.rate / replicas
    lengths = trace[::replicas] or list(traffic.lengths(max(_SHORTEST, _REQUESTS / rate), rate=rate))
    fitting = [each for each in lengths if each.prompt + each.answer < min(kind.context, kind.limits.kv_tokens)]
    arrivals = [
        Arrival(each.at, "", prompt, each.answer)
        for each, prompt in zip(fitting, traffic.prompts(fitting), strict=True)
    ]
    return replay(arrivals, scheduler_config(kind.limits), kind.cost, aims, context=kind.context)


def scheduler_config(limits: EngineLimits) -> SchedulerConfig:
    return SchedulerConfig(
        blocks=limits.kv_tokens // BLOCK_SIZE,
        step_tokens=limits.step_tokens,
        max_running=limits.max_running,
        max_waiting=1_000_000,
        policy="fcfs",
    )


def cheapest(
    kinds: Sequence[Callable[[], ReplicaKind]], traffic: PlannedTraffic, aims: LatencyAims, spare: int
) -> list[CapacityPlan]:
    """Plan by bounds alone for each kind that can serve the load, the cheapest first."""
    plans = []
    for make in kinds:
        try:
            plans.append(plan(make(), traffic, aims, spare=spare, simulated=False))
        except ValueError:
            continue  # it does not fit, or is too slow
    return sorted(plans, key=lambda each: each.value("per_hour"))


def _most(most: SteadyState, traffic: PlannedTraffic) -> list[PlanFigure]:
    return [
        PlanFigure("batch", most.batch, "requests", f"the most that decode at once: {most.binds}"),
        PlanFigure("step", most.step * 1e3, "ms", "mean step, and mean ITL, at that batch"),
        PlanFigure("most_rate", most.rate, "requests/s per replica", "batch / (output x step): Little's law"),
        PlanFigure("most_tokens", most.rate * traffic.output, "output tokens/s per replica", "the same, times output"),
    ]


def _loaded(state: SteadyState) -> list[PlanFigure]:
    return [
        PlanFigure("loaded_batch", state.batch, "requests", "decode at once in a replica at its share of the load"),
        PlanFigure("itl", state.step * 1e3, "ms", "mean there"),
        PlanFigure("ttft", state.ttft * 1e3, "ms", "there, of a prompt that finds no queue"),
    ]


def _simulated(result: ReplayResult, aims: LatencyAims) -> list[PlanFigure]:
    why = f"{result.requests} requests through the engine's scheduler"
    return [
        PlanFigure("simulated_ttft_p50", result.ttft.p50 * 1e3, "ms", why),
        PlanFigure("simulated_ttft_p95", result.ttft.p95 * 1e3, "ms", f"aim: {plain(aims.ttft * 1e3)}"),
        PlanFigure("simulated_itl_p50", result.itl.p50 * 1e3, "ms", "between two tokens"),
        PlanFigure("simulated_itl_p95", result.itl.p95 * 1e3, "ms", "steps with prompts are the longer ones"),
        PlanFigure(
            "simulated_within", result.within * 100, "%", f"of requests in both aims; asked for: {aims.share:.0%}"
        ),
    ]


def _money(price: float | None, replicas: int, traffic: PlannedTraffic) -> list[PlanFigure]:
    if price is None:
        return []
    hour = price * replicas
    tokens = traffic.rate / traffic.peak * 3600
    mean = f"{hour:.2f} an hour over {tokens:,.0f} requests of its mean"
    return [
        PlanFigure("per_hour", hour, "money", f"{replicas} replicas at {plain(price)}"),
        PlanFigure("per_month", hour * _HOURS, "money", f"{_HOURS} hours"),
        PlanFigure(
            "per_million", hour / (tokens * (traffic.input + traffic.output)) * 1e6, "money per million tokens", mean
        ),
        PlanFigure(
            "per_million_output", hour / (tokens * traffic.output) * 1e6, "money per million output tokens", mean
        ),
    ]
