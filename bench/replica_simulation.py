"""A pool of simulated replicas behind a gateway's own choice: a queue and a prefix cache each.

A replica serves one request after another. It computes the prompt's blocks that its cache does not hold, then the
answer; the cache gives up what was least recently used. That is less than what an engine does, which runs requests
side by side, but it is where queues and prefix hits meet: the order of the rules is the same, the seconds are not.

The gateway's side is the gateway's own code. `gateway.engines.placement` names a prompt's blocks, finds them in the
prefix index and chooses; the index has room for what replicas say they have room for, and knows what they tell in
frames as engines do. Loads are counted by `router.in_flight`, answers predicted to be as long as late ones. Other rules
see the same.

No clock; chance comes from a seed: the same requests give the same figures.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import random
import struct
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat

from engine.cache.prefix_keys import BLOCK_SIZE
from engine.wire import Blocks, ModelInfo
from gateway.engines.placement import Placement, PlacementQuery, Placer
from router.in_flight import AnswerLength, InFlightLoad, InFlightRequest
from router.replica import Replica, ReplicaPolicy

MODEL = ModelInfo(
    name="m",
    revision="r1",
    context=1 << 20,
    vocabulary=1 << 32,
    eos_token_ids=(),
    block_size=BLOCK_SIZE,
    device="cpu",
    dtype="bfloat16",
)


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

    def tokens(self, block: int) -> list[int]:
        """Return a prompt in which equal blocks, of so many tokens each, are equal tokens."""
        return list(islice(chain.from_iterable(repeat(number, block) for number in self.blocks), self.prompt))


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """Speed of a replica."""

    prefill: float = 8000.0
    """Prompt tokens per second."""
    decode: float = 1500.0
    """Answer tokens per second, of all requests that run side by side."""


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """The replicas, and how one of them is chosen."""

    replicas: int = 8
    capacity: int = 3000
    """Blocks that a replica's prefix cache holds."""
    block: int = 512
    """Tokens per block, a multiple of the engine's."""
    cost: ReplicaCost = ReplicaCost()
    most_answer: int = 4096
    """Tokens that clients let an answer have, which is what the gateway expects until one has ended."""
    policy: ReplicaPolicy = field(default_factory=ReplicaPolicy)


@dataclass(slots=True)
class ReplicaOutcome:
    arrival: ReplicaArrival
    replica: str
    hits: int = 0
    """Number of blocks found in the prefix cache."""
    first_token: float = 0.0
    placing: float = 0.0
    """CPU seconds that its placement took in the gateway."""


@dataclass(slots=True)
class ReplicaRun:
    """Results of one rule."""

    outcomes: list[ReplicaOutcome]
    sizes: SimulatedPool

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
        return missing(each.arrival, each.hits, self.sizes.block)

    def _imbalance(self, amounts: Sequence[int]) -> float:
        totals: dict[str, int] = {}
        for each, amount in zip(self.outcomes, amounts, strict=True):
            totals[each.replica] = totals.get(each.replica, 0) + amount
        return max(totals.values()) * self.sizes.replicas / sum(totals.values())


def missing(arrival: ReplicaArrival, hits: int, block: int) -> int:
    """Return the prompt tokens to be computed; the last one always is."""
    return max(1, arrival.prompt - hits * block)


@dataclass(slots=True)
class Node:
    """One simulated replica."""

    name: str
    in_flight: InFlightLoad = field(default_factory=InFlightLoad)
    cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """Blocks, each known by the numbers of the engine's blocks in it, as they go over the wire."""
    waiting: deque[_Job] = field(default_factory=deque)
    busy: bool = False


class ReplicaPool:
    """What a gateway knows of a pool's replicas."""

    def __init__(self, replicas: int, tokens: int, policy: ReplicaPolicy) -> None:
        """Args: tokens: that the prefix cache of each replica holds."""
        self.nodes = {name: Node(name) for name in (f"node-{at}" for at in range(replicas))}
        self.placer = Placer()
        self.placer.policy = policy
        for name in self.nodes:
            self.placer.index.resize(name, tokens // BLOCK_SIZE)
        self.answer = AnswerLength()

    def place(self, prompt: Sequence[int], draw: int, *, model: ModelInfo = MODEL, tenant: str = "") -> Placement:
        """Return the gateway's choice for a prompt, and what the replicas hold of it."""
        question = PlacementQuery(prompt=prompt, adapter=None, tenant=tenant, response="", previous=None)
        return self.placer.place(model.name, model, question, self._replicas, draw)

    @contextlib.contextmanager
    def carrying(self, name: str, placement: Placement, most: int) -> Iterator[InFlightRequest]:
        """Count a request as a replica's load, and its blocks as held, while the body runs."""
        computed = placement.prompt_tokens - placement.matched.get(name, 0)
        with (
            self.nodes[name].in_flight.carry(computed, self.answer.predict(most)) as flight,
            self.placer.expecting(name, placement.blocks, flight, told=True),
        ):
            yield flight

    def _replicas(self, matched: Mapping[str, int], last: str | None) -> list[Replica]:
        return [
            Replica(name=name, load=node.in_flight.tokens, matched_tokens=matched.get(name, 0))
            for name, node in self.nodes.items()
        ]


Rule = Callable[[ReplicaPool, Placement, random.Random], str]
"""Returns the name of the replica that gets a request."""


@dataclass(slots=True, eq=False)
class _Job:
    outcome: ReplicaOutcome
    blocks: list[bytes]
    carried: contextlib.ExitStack
    flight: InFlightRequest


class _Simulation:
    """Replicas that each prefill and decode one request at a time, and the events to come."""

    def __init__(self, pool: ReplicaPool, sizes: SimulatedPool) -> None:
        self._pool = pool
        self._sizes = sizes
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0

    def advance(self, until: float) -> None:
        """Process all events up to a time."""
        while self._events and self._events[0][0] <= until:
            at, _, what = heapq.heappop(self._events)
            what(at)

    def send(self, outcome: ReplicaOutcome, placement: Placement, now: float) -> None:
        """Send a request to the replica that was chosen for it."""
        packed = struct.pack(f"<{len(placement.blocks)}Q", *placement.blocks)
        size = 8 * self._sizes.block // BLOCK_SIZE
        blocks = [packed[start : start + size] for start in range(0, len(packed), size)]
        carried = contextlib.ExitStack()
        flight = carried.enter_context(self._pool.carrying(outcome.replica, placement, self._sizes.most_answer))
        node = self._pool.nodes[outcome.replica]
        node.waiting.append(_Job(outcome, blocks, carried, flight))
        self._begin(node, now)

    def _later(self, at: float, what: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, what))

    def _begin(self, node: Node, now: float) -> None:
        if node.busy or not node.waiting:
            return
        node.busy = True
        job = node.waiting.popleft()
        for known in job.blocks:
            if known not in node.cache:
                break
            job.outcome.hits += 1
        prefilled = now + missing(job.outcome.arrival, job.outcome.hits, self._sizes.block) / self._sizes.cost.prefill
        self._later(prefilled, lambda at: self._first_token(node, job, at))

    def _first_token(self, node: Node, job: _Job, now: float) -> None:
        job.outcome.first_token = now
        job.flight.prefilled()
        new = dict.fromkeys(each for each in job.blocks if each not in node.cache)
        for each in reversed(job.blocks):
            node.cache[each] = None
            node.cache.move_to_end(each)
        evicted = [node.cache.popitem(last=False)[0] for _ in range(len(node.cache) - self._sizes.capacity)]
        stored = b"".join(each for each in new if each in node.cache)
        removed = b"".join(each for each in evicted if each not in new)
        self._pool.placer.told(node.name, Blocks(stored=stored, removed=removed))
        self._later(now + job.outcome.arrival.answer / self._sizes.cost.decode, lambda at: self._end(node, job, at))

    def _end(self, node: Node, job: _Job, now: float) -> None:
        job.carried.close()
        self._pool.answer.observe(job.outcome.arrival.answer)
        node.busy = False
        self._begin(node, now)


def simulate(arrivals: Sequence[ReplicaArrival], rule: Rule, sizes: SimulatedPool, seed: int = 1) -> ReplicaRun:
    """Serve all arrivals, which come in order."""
    chance = random.Random(seed)
    pool = ReplicaPool(sizes.replicas, sizes.capacity * sizes.block, sizes.policy)
    run, simulation = ReplicaRun([], sizes), _Simulation(pool, sizes)
    for arrival in arrivals:
        simulation.advance(arrival.at)
        prompt, began = arrival.tokens(sizes.block), time.thread_time()
        placement = pool.place(prompt, chance.getrandbits(64))
        outcome = ReplicaOutcome(arrival, rule(pool, placement, chance), placing=time.thread_time() - began)
        run.outcomes.append(outcome)
        simulation.send(outcome, placement, arrival.at)
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
