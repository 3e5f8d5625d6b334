"""Simulates a pool of replicas, each with the real scheduler: they start, serve, drain and are lost, and requests move.

The router's own rule places each request (`router/replica.py`). Every few seconds a `Sizer` is shown what a controller
would see and says how many replicas there are to be. A request whose replica is lost, or does not end before the drain
does, goes on elsewhere from the tokens that it has. No clock; chance comes from a seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from engine.cache.prefix_keys import BLOCK_SIZE, block_hashes
from engine.plan import Sampled, StepPlan
from engine.request import Request
from engine.scheduling.config import SchedulerConfig
from engine.scheduling.scheduler import Scheduler
from router.replica import Replica, ReplicaPolicy, choose
from scale.capacity import Capacity, StepCost
from scale.policy import ScaleDecision
from scale.signals import PoolReplica, PoolSignal, ReplicaPhase
from scale.simulation import Arrival, kv_bytes, request_of, simulated_model

Sizer = Callable[[PoolSignal, float], ScaleDecision]
"""Decides on a signal and the share of the time since the last one for which ready replicas ran steps."""


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """The replicas of a simulated pool, and their times in seconds."""

    scheduler: SchedulerConfig
    cost: StepCost
    kv_token_bytes: int = 0
    replicas: int = 1
    """Number of those that are ready at the beginning."""
    start_seconds: float = 180.0
    look_seconds: float = 10.0
    drain_seconds: float = 600.0
    """Time after which what a draining replica still has moves to others."""
    prompt_tokens: float = 1024.0
    """Mean length of prompts, `output_tokens` that of answers, as far as they are assumed: a replica's capacity depends
    on both, and what an answer will need is not known before some have ended."""
    output_tokens: float = 128.0
    on_demand: int | None = None
    """Replicas on machines that stay; the others are on spot machines. None: all stay."""
    shared: bool = True
    """Whether prompts have prefixes in common, so that the placement looks for them."""

    @property
    def capacity(self) -> Capacity:
        """Return the work of a token at the largest batch whose keys and values fit."""
        context = self.prompt_tokens + self.output_tokens / 2
        batch = min(self.scheduler.max_running, max(1.0, self.scheduler.blocks * BLOCK_SIZE / context))
        return Capacity.of(self.cost, batch, self.kv_token_bytes * context)


@dataclass(slots=True)
class FleetOutcome:
    """How a request was served. Times are absolute, None for what did not happen."""

    arrival: Arrival
    first_token: float | None = None
    ended: float | None = None
    tokens: int = 0
    """Output tokens that it got."""
    moves: int = 0

    @property
    def ttft(self) -> float:
        return math.inf if self.first_token is None else self.first_token - self.arrival.at


class FleetSize(NamedTuple):
    """A pool's size at one look."""

    time: float
    ready: int
    paid: int
    """Replicas that start, are ready or drain."""
    offered: float
    """Work that arrived since the last look, in replicas."""


@dataclass(slots=True)
class FleetRun:
    """Results of one run."""

    outcomes: list[FleetOutcome] = field(default_factory=list)
    sizes: list[FleetSize] = field(default_factory=list)
    replica_seconds: float = 0.0
    """Seconds of all replicas from when they were asked for until they were gone."""
    seconds: float = 0.0

    @property
    def mean_replicas(self) -> float:
        return self.replica_seconds / self.seconds

    def attained(self, ttft: float) -> float:
        """Return the share of requests whose first token came within so many seconds."""
        return sum(each.ttft <= ttft for each in self.outcomes) / len(self.outcomes)


@dataclass(slots=True, eq=False)
class _Flight:
    """One request in flight, and the work of it that its replica still has before it."""

    outcome: FleetOutcome
    request: Request
    prompt_work: float = 0.0
    work: float = 0.0


@dataclass(slots=True, eq=False)
class _Node:
    """One simulated replica."""

    id: str
    since: float
    scheduler: Scheduler
    phase: ReplicaPhase = ReplicaPhase.STARTING
    asked: float = 0.0
    spot: bool = False
    gone: bool = False
    plan: StepPlan | None = None
    busy: float = 0.0
    """Seconds of its steps since the last look."""
    work: float = 0.0
    """Replica-seconds of work that it has before it."""
    flights: dict[str, _Flight] = field(default_factory=dict)


class Fleet:
    """One pool, and the events to come."""

    def __init__(self, config: FleetConfig, sizer: Sizer | None = None, *, seed: int = 1) -> None:
        self.run = FleetRun()
        self._config = config
        self._sizer = sizer
        self._chance = random.Random(seed)
        self._capacity = config.capacity
        self._mean_output = config.output_tokens
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = 0
        self._nodes: list[_Node] = []
        self._held: deque[_Flight] = deque()
        """Requests that wait for a first replica."""
        self._offered = 0.0
        self._paying = True
        self._firsts: deque[tuple[float, float]] = deque()
        """Times and TTFTs of the last minute's first tokens."""
        for _ in range(config.replicas):
            self._ready(self._ask(0.0), 0.0)

    def serve(
        self, arrivals: Iterable[Arrival], losses: Iterable[float] = (), reclaims: Iterable[float] = ()
    ) -> FleetRun:
        """Run all arrivals, which come in order, to their end. Replicas are paid until the last one.

        Args:
            losses: times at which the busiest replica is lost.
            reclaims: times at which all spot machines are taken away.
        """
        for at in losses:
            self._later(at, self._lose)
        for at in reclaims:
            self._later(at, self._reclaim)
        if self._sizer is not None:
            self._later(self._config.look_seconds, self._look)
        now = 0.0
        for number, arrival in enumerate(arrivals):
            now = arrival.at
            self._advance(now)
            outcome = FleetOutcome(arrival)
            self.run.outcomes.append(outcome)
            self._offered += self._place(_Flight(outcome, request_of(arrival, str(number))), now)
        self.run.seconds = now
        self.run.replica_seconds += sum(now - node.asked for node in self._nodes)
        self._sizer, self._paying = None, False
        self._advance(math.inf)
        return self.run

    def _advance(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            at, _, what = heapq.heappop(self._events)
            what(at)

    def _later(self, at: float, what: Callable[[float], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (at, self._numbers, what))

    # Requests

    def _place(self, flight: _Flight, now: float) -> float:
        """Give a request to a replica; return its work in replica-seconds."""
        request = flight.request
        ready = [node for node in self._nodes if node.phase is ReplicaPhase.READY]
        output = max(1.0, self._mean_output - len(request.output))
        if not ready:
            self._held.append(flight)
            return self._capacity.work(request.length, output)
        matched = [0] * len(ready)
        if self._config.shared:
            hashes = block_hashes(request.chain_root, request.prompt)
            matched = [BLOCK_SIZE * len(node.scheduler.pool.match(hashes)) for node in ready]
        scale = 1 / self._capacity.output_seconds
        replicas = [
            Replica(name=node.id, load=round(node.work * scale), matched_tokens=known)
            for node, known in zip(ready, matched, strict=True)
        ]
        chosen = choose(replicas, request.length, ReplicaPolicy(), self._chance.getrandbits(64)).order[0]
        at = next(at for at, node in enumerate(ready) if node.id == chosen)
        node = ready[at]
        flight.prompt_work = self._capacity.work(max(1, request.length - matched[at]), 0)
        flight.work = flight.prompt_work + self._capacity.work(0, output)
        node.work += flight.work
        node.flights[request.id] = flight
        node.scheduler.add(request, now)
        if node.plan is None:
            self._begin(node, now)
        return flight.work

    def _begin(self, node: _Node, now: float) -> None:
        """Begin a step."""
        node.plan = plan = node.scheduler.schedule(now)
        cost, token_bytes = self._config.cost, self._config.kv_token_bytes
        seconds = cost.seconds(plan.tokens, len(plan.rows), kv_bytes(plan, token_bytes))
        node.busy += seconds
        self._later(now + seconds, partial(self._end, node))

    def _end(self, node: _Node, now: float) -> None:
        """End a step, and begin the next one."""
        plan, node.plan = node.plan, None
        if node.gone or plan is None:
            return
        sampled = [Sampled((0,)) if row.sample else Sampled() for row in plan.rows]
        for request, gained in node.scheduler.commit(plan, sampled):
            if gained.tokens:
                self._note(node, node.flights[request.id], now)
        if len(node.scheduler):
            self._begin(node, now)
        elif node.phase is ReplicaPhase.DRAINING:
            self._remove(node, now)

    def _note(self, node: _Node, flight: _Flight, now: float) -> None:
        """Record a token of a request."""
        outcome, request = flight.outcome, flight.request
        outcome.tokens = len(request.output)
        if flight.prompt_work:
            node.work -= flight.prompt_work
            flight.work -= flight.prompt_work
            flight.prompt_work = 0.0
        if outcome.first_token is None:
            outcome.first_token = now
            self._firsts.append((now, outcome.ttft))
        if request.finish is not None:
            outcome.ended = now
            node.work -= flight.work
            del node.flights[request.id]
            self._mean_output += 0.005 * (outcome.tokens - self._mean_output)

    def _move(self, node: _Node, now: float) -> None:
        """Let all requests of a replica go on elsewhere."""
        flights, node.flights = list(node.flights.values()), {}
        for flight in flights:
            node.scheduler.cancel(flight.request.id)
            request = request_of(flight.outcome.arrival, flight.request.id)
            request.output, request.resumed = list(flight.request.output), len(flight.request.output)
            flight.outcome.moves += 1
            self._place(_Flight(flight.outcome, request), now)

    # Replicas

    def _ask(self, now: float) -> _Node:
        self._numbers += 1
        node = _Node(f"replica-{self._numbers}", now, Scheduler(self._config.scheduler, simulated_model()), asked=now)
        staying = sum(not each.spot and each.phase is not ReplicaPhase.DRAINING for each in self._nodes)
        node.spot = self._config.on_demand is not None and staying >= self._config.on_demand
        self._nodes.append(node)
        return node

    def _ready(self, node: _Node, now: float) -> None:
        if node.gone:
            return
        node.phase, node.since = ReplicaPhase.READY, now
        held, self._held = self._held, deque()
        for flight in held:
            self._place(flight, now)

    def _drain(self, node: _Node, now: float) -> None:
        node.phase, node.since = ReplicaPhase.DRAINING, now
        if not len(node.scheduler):
            self._remove(node, now)
            return

        def overdue(at: float) -> None:
            if not node.gone:
                self._remove(node, at)
                self._move(node, at)

        self._later(now + self._config.drain_seconds, overdue)

    def _remove(self, node: _Node, now: float) -> None:
        node.gone = True
        self._nodes.remove(node)
        self.run.replica_seconds += (now - node.asked) * self._paying

    def _lose(self, now: float) -> None:
        ready = [node for node in self._nodes if node.phase is ReplicaPhase.READY]
        if ready:
            node = max(ready, key=lambda each: len(each.flights))
            self._remove(node, now)
            self._move(node, now)

    def _reclaim(self, now: float) -> None:
        taken = [node for node in self._nodes if node.spot]
        for node in taken:
            self._remove(node, now)
        for node in taken:
            self._move(node, now)

    # Size

    def _look(self, now: float) -> None:
        if self._sizer is None:
            return
        ready = [node for node in self._nodes if node.phase is ReplicaPhase.READY]
        busy = sum(node.busy for node in ready) / (len(ready) * self._config.look_seconds) if ready else 0.0
        signal = self._signal(now)
        decision = self._sizer(signal, busy)
        offered = signal.offered / self._config.look_seconds
        self.run.sizes.append(FleetSize(now, len(ready), len(self._nodes), offered))
        self._offered = 0.0
        for node in self._nodes:
            node.busy = 0.0
        self._resize(decision, now)
        self._later(now + self._config.look_seconds, self._look)

    def _signal(self, now: float) -> PoolSignal:
        while self._firsts and self._firsts[0][0] < now - 60:
            self._firsts.popleft()
        ttfts = sorted(ttft for _, ttft in self._firsts)
        waiting = sum(len(node.scheduler) - len(node.scheduler.running) for node in self._nodes) + len(self._held)
        tokens = sum(node.scheduler.uncomputed_tokens for node in self._nodes)
        tokens += sum(flight.request.length for flight in self._held)
        return PoolSignal(
            time=now,
            replicas=tuple(self._replica(node, now) for node in self._nodes),
            offered=self._offered,
            backlog=self._capacity.work(tokens, waiting * self._mean_output),
            waiting=waiting,
            wanted=len(self._held),
            ttft_p95=ttfts[math.ceil(0.95 * len(ttfts)) - 1] if ttfts else None,
        )

    def _replica(self, node: _Node, now: float) -> PoolReplica:
        pool = node.scheduler.pool
        return PoolReplica(
            id=node.id,
            phase=node.phase,
            age=now - node.since,
            in_flight=len(node.scheduler),
            slots=self._config.scheduler.max_running,
            kv_share=1 - pool.available / pool.total,
            spot=node.spot,
        )

    def _resize(self, decision: ScaleDecision, now: float) -> None:
        for node in [each for each in self._nodes if each.id in decision.victims]:
            self._drain(node, now)
        starting = [node for node in self._nodes if node.phase is ReplicaPhase.STARTING]
        present = len(starting) + sum(node.phase is ReplicaPhase.READY for node in self._nodes)
        for _ in range(decision.desired - present):
            node = self._ask(now)
            self._later(now + self._config.start_seconds, partial(self._ready, node))
        for node in starting[::-1][: max(0, present - decision.desired)]:
            self._remove(node, now)
