"""A pool whose requests are an amount and not single ones, for weeks of load: a second of work for an hour of it.

In each tick replicas admit what their slots hold, prefill it, and decode all that is admitted; the seconds of both come
from the same step cost as in `scale/fleet.py`. All replicas are equally loaded, and chance within a tick is left out.
`bench.autoscale` checks it against the real scheduler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bench.autoscale_workload import Series
from scale.fleet import FleetConfig, FleetSize, Sizer
from scale.signals import PoolReplica, PoolSignal, ReplicaPhase


@dataclass(frozen=True, slots=True)
class FluidLoad:
    """Requests of each tick, and the mean lengths of these."""

    tick: float
    requests: Series
    prompts: Series
    outputs: Series


@dataclass(slots=True)
class FluidRun:
    """Results of one run."""

    attained: float = 0.0
    """Share of requests whose first token came in time."""
    mean_replicas: float = 0.0
    sizes: list[FleetSize] = field(default_factory=list)


@dataclass(slots=True)
class _Pool:
    """What is in the pool, in requests."""

    ready: int
    starting: list[float] = field(default_factory=list)
    """Times at which they will be ready, in order."""
    draining: list[float] = field(default_factory=list)
    """Times at which they will be gone."""
    waiting: float = 0.0
    prefilling: float = 0.0
    """Requests that are admitted and not decoding yet; `prompt_tokens` are left of their prompts."""
    prompt_tokens: float = 0.0
    decoding: float = 0.0
    rate: float = 0.0
    """Requests that end in a second."""


class Fluid:
    """One run."""

    def __init__(self, config: FleetConfig, sizer: Sizer, ttft: float) -> None:
        self._config = config
        self._sizer = sizer
        self._ttft = ttft
        self._capacity = config.capacity
        context = config.prompt_tokens + config.output_tokens / 2
        cost = config.cost
        self._row = cost.row + cost.token + cost.kv_byte * config.kv_token_bytes * context
        self._pool = _Pool(config.replicas)
        self._offered = 0.0
        self._mean_output = config.output_tokens
        self._busy = 0.0
        self._last_ttft = 0.0

    def serve(self, load: FluidLoad) -> FluidRun:
        """Run a load from its first to its last tick."""
        run, pool, config = FluidRun(), self._pool, self._config
        total = good = paid = 0.0
        look = round(config.look_seconds / load.tick)
        rows = zip(load.requests.tolist(), load.prompts.tolist(), load.outputs.tolist(), strict=True)
        for at, (arrived, prompt, output) in enumerate(rows):
            now = at * load.tick
            while pool.starting and pool.starting[0] <= now:
                del pool.starting[0]
                pool.ready += 1
            pool.draining = [end for end in pool.draining if end > now]
            self._offered += arrived * self._capacity.work(prompt, self._mean_output)
            self._mean_output += 0.005 * min(arrived, 20.0) * (output - self._mean_output)
            total += arrived
            self._last_ttft = self._step(arrived, prompt, output, load.tick)
            good += arrived * (self._last_ttft <= self._ttft)
            paid += pool.ready + len(pool.starting) + len(pool.draining)
            if at % look == look - 1:
                size = pool.ready + len(pool.starting) + len(pool.draining)
                run.sizes.append(FleetSize(now, pool.ready, size, self._offered / config.look_seconds))
                self._look(now, prompt, output)
        run.attained, run.mean_replicas = good / total, paid / len(load.requests)
        return run

    def _step(self, arrived: float, prompt: float, output: float, tick: float) -> float:
        """Admit, prefill and decode for one tick; return the TTFT of what arrived in it."""
        pool, cost, scheduler = self._pool, self._config.cost, self._config.scheduler
        waited, ahead = pool.waiting, pool.prompt_tokens
        pool.waiting += arrived
        if not pool.ready:
            return math.inf
        free = scheduler.max_running * pool.ready - pool.prefilling - pool.decoding
        admitted = min(pool.waiting, max(0.0, free + pool.rate * tick))
        pool.waiting -= admitted
        pool.prefilling += admitted
        pool.prompt_tokens += admitted * prompt
        step = cost.base + self._row * pool.decoding / pool.ready
        full = step + cost.token * scheduler.step_tokens
        prefilled = min(pool.prompt_tokens, pool.ready * tick * scheduler.step_tokens / full)
        begun = pool.prefilling * prefilled / pool.prompt_tokens if pool.prompt_tokens else 0.0
        pool.prefilling -= begun
        pool.prompt_tokens -= prefilled
        # Requests begin evenly over the tick and end at a rate: dx/dt = begun / tick - speed * x.
        speed = max(1e-9, (1 - prefilled * cost.token / pool.ready / tick) / (output * step))
        kept = math.exp(-speed * tick)
        left = pool.decoding * kept + begun * (1 - kept) / (speed * tick)
        pool.rate = (pool.decoding + begun - left) / tick
        pool.decoding = left
        self._busy += tick if left > 0.5 or prefilled > 0 else 0.0
        # In the mean, what arrives has half of what was there at the beginning and at the end before it.
        wait = (waited + pool.waiting) / 2 / pool.rate if waited + pool.waiting > 0 and pool.rate else 0.0
        tokens = (ahead + pool.prompt_tokens) / 2 / pool.ready + prompt
        return wait + step / 2 + max(1.0, tokens / scheduler.step_tokens) * step + tokens * cost.token

    def _look(self, now: float, prompt: float, output: float) -> None:
        config, pool = self._config, self._pool
        in_flight = pool.waiting + pool.prefilling + pool.decoding
        each = round(in_flight / pool.ready) if pool.ready else 0
        slots = config.scheduler.max_running
        ready = [
            PoolReplica(id=str(at), phase=ReplicaPhase.READY, age=60.0, in_flight=each, slots=slots)
            for at in range(pool.ready)
        ]
        starting = [PoolReplica(id=f"s{at}", phase=ReplicaPhase.STARTING, age=0.0) for at in range(len(pool.starting))]
        tokens = pool.waiting * prompt + pool.prompt_tokens
        signal = PoolSignal(
            time=now + config.look_seconds,
            replicas=(*ready, *starting),
            offered=self._offered,
            backlog=self._capacity.work(tokens, pool.waiting * self._mean_output),
            waiting=round(pool.waiting),
            ttft_p95=self._last_ttft,
        )
        decision = self._sizer(signal, self._busy / config.look_seconds)
        self._offered = self._busy = 0.0
        self._resize(decision.desired, len(decision.victims), now, output)

    def _resize(self, desired: int, victims: int, now: float, output: float) -> None:
        pool, config = self._pool, self._config
        if victims:
            step = config.cost.base + self._row * pool.decoding / pool.ready
            # What they have runs elsewhere in this model; they are paid until the longest of it would have ended.
            pool.draining += [now + 3 * output * step] * victims
            pool.ready -= victims
        present = pool.ready + len(pool.starting)
        pool.starting += [now + config.start_seconds] * (desired - present)
        if present > desired:
            del pool.starting[max(0, len(pool.starting) - (present - desired)) :]
