"""Runs a load through the engine's own scheduler, step by step, in the time that a cost says. No model runs.

What Vidur does with schedulers of its own (Agrawal et al., 2024), with the one that will decide: queues, chunks of
prompts, prefix hits and preemptions are those of the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from engine.plan import StepPlan
from engine.scheduling.config import SchedulerConfig
from engine.scheduling.scheduler import Scheduler
from scale.planning.bounds import LatencyAims
from scale.planning.step_cost import StepTime
from scale.simulation import Arrival, ArrivalOutcome, simulate

WARM_UP = 0.2
"""Share of the requests at the beginning that do not count: the replica is empty when they come."""


class Percentiles(Struct, frozen=True):
    """Seconds that half, and 95 and 99 of 100 values, do not exceed."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        ordered = sorted(values)

        def at(share: float) -> float:
            return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan

        return cls(at(0.5), at(0.95), at(0.99))


class ReplayResult(Struct, frozen=True):
    """How one replica served a load."""

    requests: int
    """Requests that count."""
    ttft: Percentiles
    itl: Percentiles
    """Over all gaps between tokens."""
    within: float
    """Share of the requests within the aims."""
    tokens_per_second: float
    """Tokens of answers, from the first arrival to the last end."""
    hits: float
    """Share of the prompts' tokens that were found in the prefix cache."""
    preemptions: int


class _StepClock:
    """Says how long each step takes, and notes the gaps between the tokens of each request."""

    def __init__(self, cost: StepTime) -> None:
        self.gaps: list[tuple[int, float]] = []
        """Numbers of requests, with seconds."""
        self._step = cost.run()
        self._seconds = 0.0
        self._last: dict[str, float] = {}

    def begin(self, scheduler: Scheduler, plan: StepPlan, now: float) -> None:
        """Note a step that begins now; `seconds` is that of the last one."""
        self._seconds = self._step(plan.work)
        end = now + self._seconds
        for row in plan.rows:
            if row.sample:
                id = row.request.id
                if id in self._last:
                    self.gaps.append((int(id), end - self._last[id]))
                self._last[id] = end

    def seconds(self, tokens: float, rows: float, kv_bytes: float = 0.0) -> float:
        return self._seconds


def replay(
    arrivals: Sequence[Arrival], config: SchedulerConfig, cost: StepTime, aims: LatencyAims, *, context: int = 1 << 30
) -> ReplayResult:
    """Run all arrivals, which come in order, through one replica to their end."""
    clock = _StepClock(cost)
    run = simulate(arrivals, config, clock, context=context, observe=clock.begin)
    first = int(WARM_UP * len(arrivals))
    outcomes = run.outcomes[first:]
    ended = [outcome for outcome in outcomes if outcome.ended is not None]
    last = max((outcome.ended or 0.0 for outcome in run.outcomes), default=0.0)
    prompts = sum(len(outcome.arrival.prompt) for outcome in ended)
    return ReplayResult(
        requests=len(outcomes),
        ttft=Percentiles.of([outcome.ttft for outcome in ended if outcome.ttft is not None]),
        itl=Percentiles.of([gap for number, gap in clock.gaps if number >= first]),
        within=sum(_meets(outcome, aims) for outcome in outcomes) / max(1, len(outcomes)),
        tokens_per_second=sum(outcome.arrival.output for outcome in run.outcomes if outcome.ended is not None)
        / max(last - arrivals[0].at, 1e-9),
        hits=sum(outcome.cached for outcome in ended) / max(1, prompts),
        preemptions=sum(outcome.preemptions for outcome in ended),
    )


def _meets(outcome: ArrivalOutcome, aims: LatencyAims) -> bool:
    if outcome.ended is None or outcome.ttft is None or outcome.ttft > aims.ttft:
        return False
    rest = outcome.ended - outcome.arrival.at - outcome.ttft
    return rest <= aims.itl * (outcome.arrival.output - 1) + 1e-9
