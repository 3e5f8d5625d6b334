"""A pool of simulated replicas: a queue and a prefix cache each, and a rule that says who gets the next request.

A replica serves one request after another. It computes the prompt's blocks that its cache does not hold, then the
answer; the cache gives up what was least recently used. That is less than what an engine does, which runs requests
side by side, but it is where queues and prefix hits meet: the order of the rules is the same, the seconds are not.

No clock; chance comes from a seed: the same requests give the same figures.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cache.prefix import PrefixIndex
from router.in_flight import InFlightLoad, InFlightRequest
from router.replica import Replica, ReplicaPolicy, choose


@dataclass(frozen=True, slots=True)
class ReplicaArrival:
    """One request."""

    at: float
    """Time of arrival in seconds."""
    blocks: tuple[int, ...]
    """Blocks of the prompt: equal numbers are equal blocks after equal blocks."""
    prompt: int
    """Tokens of the prompt."""
    answer: int
    """Tokens of the answer."""


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """Speed of a replica."""

    prefill: float = 8000.0
    """Prompt tokens per second."""
    decode: float = 1500.0
    """Answer tokens per second, of all requests that run side by side."""


@dataclass(slots=True)
class ReplicaOutcome:
    arrival: ReplicaArrival
    replica: int
    hits: int = 0
    """Number of blocks found in the prefix cache."""
    first_token: float = 0.0


@dataclass(slots=True)
class ReplicaRun:
    """Results of one rule."""

    outcomes: list[ReplicaOutcome]
    replicas: int
    block: int

    @property
    def hit_ratio(self) -> float:
        """Return the share of blocks that were found in a prefix cache."""
        return sum(each.hits for each in self.outcomes) / sum(len(each.arrival.blocks) for each in self.outcomes)

    @property
    def imbalance(self) -> float:
        """Return the requests of the busiest replica over the mean."""
        return self._imbalance([1] * len(self.outcomes))

    @property
    def work_imbalance(self) -> float:
        """Return the computed tokens of the busiest replica over the mean."""
        return self._imbalance([self._computed(each) + each.arrival.answer for each in self.outcomes])

    @property
    def computed(self) -> int:
        """Return the prompt tokens that were not found in a prefix cache."""
        return sum(self._computed(each) for each in self.outcomes)

    @property
    def ttfts(self) -> list[float]:
        return [each.first_token - each.arrival.at for each in self.outcomes]

    def _computed(self, each: ReplicaOutcome) -> int:
        return missing(each.arrival, each.hits, self.block)

    def _imbalance(self, amounts: Sequence[int]) -> float:
        totals = [0] * self.replicas
        for each, amount in zip(self.outcomes, amounts, strict=True):
            totals[each.replica] += amount
        return max(totals) * self.replicas / sum(totals)


def missing(arrival: ReplicaArrival, hits: int, block: int) -> int:
    """Return the prompt tokens to be computed; the last one always is."""
    return max(1, arrival.prompt - hits * block)


@dataclass(slots=True)
class Node:
    """One simulated replica."""

    name: str
    in_flight: InFlightLoad = field(default_factory=InFlightLoad)
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    waiting: deque[_Job] = field(default_factory=deque)
    busy: bool = False


class ReplicaPool:
    """The state that a rule may look at."""

    def __init__(self, nodes: list[Node], index: PrefixIndex, block: int) -> None:
        self.nodes = nodes
        self.index = index
        self.block = block

    def matched(self, arrival: ReplicaArrival) -> dict[str, int]:
        """Return the tokens of the prompt that each replica holds, by the block events so far."""
        found = self.index.match(arrival.blocks)
        return {name: min(blocks * self.block, arrival.prompt) for name, blocks in found.items()}


Rule = Callable[[ReplicaPool, ReplicaArrival, random.Random], int]


def round_robin() -> Rule:
    count = -1

    def rule(pool: ReplicaPool, arrival: ReplicaArrival, chance: random.Random) -> int:
        nonlocal count
        count += 1
        return count % len(pool.nodes)

    return rule


def power_of_two(pool: ReplicaPool, arrival: ReplicaArrival, chance: random.Random) -> int:
    return min(chance.sample(range(len(pool.nodes)), 2), key=lambda at: pool.nodes[at].in_flight.tokens)


def least_loaded(pool: ReplicaPool, arrival: ReplicaArrival, chance: random.Random) -> int:
    return min(range(len(pool.nodes)), key=lambda at: (pool.nodes[at].in_flight.tokens, chance.random()))


def longest_prefix(pool: ReplicaPool, arrival: ReplicaArrival, chance: random.Random) -> int:
    matched = pool.matched(arrival)
    return max(range(len(pool.nodes)), key=lambda at: matched.get(pool.nodes[at].name, 0))


def by_score(policy: ReplicaPolicy) -> Rule:
    """Return the gateway's own rule."""

    def rule(pool: ReplicaPool, arrival: ReplicaArrival, chance: random.Random) -> int:
        matched = pool.matched(arrival)
        replicas = [
            Replica(name=node.name, load=node.in_flight.tokens, matched_tokens=matched.get(node.name, 0))
            for node in pool.nodes
        ]
        chosen = choose(replicas, arrival.prompt, policy, chance.getrandbits(64)).order[0]
        return next(at for at, node in enumerate(pool.nodes) if node.name == chosen)

    return rule


@dataclass(slots=True, eq=False)
class _Job:
    outcome: ReplicaOutcome
    expected: Sequence[int]
    carry: object
    flight: InFlightRequest


class _Simulation:
    """Replicas that each prefill and decode one request at a time, and the events to come."""

    def __init__(self, pool: ReplicaPool, capacity: int, cost: ReplicaCost) -> None:
        self._pool = pool
        self._capacity = capacity
        self._cost = cost
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0

    def advance(self, until: float) -> None:
        """Process all events up to a time."""
        while self._events and self._events[0][0] <= until:
            at, _, what = heapq.heappop(self._events)
            what(at)

    def arrive(self, node: Node, job: _Job, now: float) -> None:
        node.waiting.append(job)
        self._begin(node, now)

    def _later(self, at: float, what: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, what))

    def _begin(self, node: Node, now: float) -> None:
        if node.busy or not node.waiting:
            return
        node.busy = True
        job = node.waiting.popleft()
        arrival, outcome = job.outcome.arrival, job.outcome
        for known in arrival.blocks:
            if known not in node.cache:
                break
            outcome.hits += 1
        prefilled = now + missing(arrival, outcome.hits, self._pool.block) / self._cost.prefill
        self._later(prefilled, lambda at: self._first_token(node, job, at))

    def _first_token(self, node: Node, job: _Job, now: float) -> None:
        job.outcome.first_token = now
        job.flight.prefilled()
        blocks = job.outcome.arrival.blocks
        new = [each for each in blocks if each not in node.cache]
        for each in reversed(blocks):
            node.cache[each] = None
            node.cache.move_to_end(each)
        evicted = [node.cache.popitem(last=False)[0] for _ in range(len(node.cache) - self._capacity)]
        self._pool.index.stored(node.name, new)
        self._pool.index.removed(node.name, evicted)
        self._later(now + job.outcome.arrival.answer / self._cost.decode, lambda at: self._end(node, job, at))

    def _end(self, node: Node, job: _Job, now: float) -> None:
        job.carry.__exit__(None, None, None)  # type: ignore[attr-defined]
        self._pool.index.settle(node.name, job.expected)
        node.busy = False
        self._begin(node, now)


def simulate(
    arrivals: Sequence[ReplicaArrival],
    rule: Rule,
    *,
    replicas: int = 8,
    capacity: int = 3000,
    block: int = 512,
    cost: ReplicaCost | None = None,
    seed: int = 1,
) -> ReplicaRun:
    """Serve all arrivals, which come in order.

    Args:
        capacity: blocks that a replica's prefix cache holds.
        block: tokens per block.
    """
    chance = random.Random(seed)
    pool = ReplicaPool([Node(f"node-{at}") for at in range(replicas)], PrefixIndex(blocks=2 * capacity), block)
    run, simulation = ReplicaRun([], replicas, block), _Simulation(pool, capacity, cost or ReplicaCost())
    for arrival in arrivals:
        simulation.advance(arrival.at)
        chosen = rule(pool, arrival, chance)
        node = pool.nodes[chosen]
        hits = pool.matched(arrival).get(node.name, 0) // block
        carry = node.in_flight.carry(missing(arrival, hits, block), arrival.answer)
        outcome = ReplicaOutcome(arrival, chosen)
        run.outcomes.append(outcome)
        job = _Job(outcome, pool.index.expect(node.name, arrival.blocks), carry, carry.__enter__())
        simulation.arrive(node, job, arrival.at)
    simulation.advance(math.inf)
    return run


def ceiling(arrivals: Sequence[ReplicaArrival]) -> float:
    """Return the hit ratio of one unbounded cache that all requests share."""
    seen: set[int] = set()
    hits = 0
    for arrival in arrivals:
        for each in arrival.blocks:
            if each not in seen:
                break
            hits += 1
        seen.update(arrival.blocks)
    return hits / sum(len(arrival.blocks) for arrival in arrivals)
