"""Runs the real scheduler without a model. A step takes as long as a cost model says.

No clock, no randomness: the same arrivals give the same times. The tests prove the policies' promises with it, and
`bench.fairness` replays traces.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.cache.blocks import BLOCK_SIZE
from engine.plan import Sampled, StepPlan
from engine.request import Request, RequestError
from engine.scheduling.config import SchedulerConfig
from engine.scheduling.deadlines import Deadlines
from engine.scheduling.scheduler import Scheduler
from engine.wire import ModelInfo, SamplingParams, ServiceClass

OUTPUT_COST = 2
"""Cost of an output token, in input tokens, where services are compared."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. Its answer has exactly `output` tokens."""

    at: float
    tenant: str
    prompt: list[int]
    output: int
    service: ServiceClass = "standard"
    weight: float = 1.0
    queue_timeout: float | None = None


@dataclass(slots=True)
class ArrivalOutcome:
    """How an arrival was served. Times are absolute, None for what did not happen."""

    arrival: Arrival
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    refused: RequestError | None = None
    """Error of a request that was not let into the queue."""
    expired: bool = False
    """Whether it waited longer than its `queue_timeout`."""
    preemptions: int = 0
    cached: int = 0

    def note(self, request: Request, sampled: Sampled, now: float) -> None:
        """Record the results of an engine's step."""
        self.started = request.first_scheduled
        if sampled.tokens and self.first_token is None:
            self.first_token, self.cached = now, request.cached
        if request.finish is not None:
            self.ended, self.preemptions = now, request.preemptions

    @property
    def ttft(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.arrival.at


@dataclass(slots=True)
class Simulation:
    """Results of one run."""

    outcomes: list[ArrivalOutcome]
    seconds: float = 0.0
    tokens: int = 0
    """Number of tokens that were run, repeated ones included."""
    windows: list[dict[str, float]] = field(default_factory=list)
    """Service by weight, of each standard tenant that had a request waiting all the time, window by window."""

    def ttfts(self, tenant: str) -> list[float]:
        return [
            outcome.ttft for outcome in self.outcomes if outcome.arrival.tenant == tenant and outcome.ttft is not None
        ]

    @property
    def jain(self) -> float:
        """Return the mean index over the windows in which at least two tenants were waiting; 1 if there are none."""
        indices = [jain(list(window.values())) for window in self.windows if len(window) > 1]
        return sum(indices) / len(indices) if indices else 1.0

    @property
    def contended(self) -> int:
        """Return the number of windows in which at least two tenants were waiting."""
        return sum(len(window) > 1 for window in self.windows)


def jain(values: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 if all are equal, 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


class StepSeconds(Protocol):
    """Says how long a step takes, of which `observe` has just been told, such as `scale.capacity.StepCost`."""

    def seconds(self, tokens: float, rows: float, kv_bytes: float = 0.0) -> float: ...


def simulated_model(context: int = 1_000_000) -> ModelInfo:
    """Return a model that a scheduler can be made for. `context`: most tokens of a request."""
    return ModelInfo("simulated", "r", context, 1 << 31, (), BLOCK_SIZE, "none", "none")


def kv_bytes(plan: StepPlan, token_bytes: int) -> int:
    """Return the bytes of keys and values that a step reads."""
    return token_bytes and token_bytes * sum(row.start + row.count for row in plan.rows)


def simulate(
    arrivals: Iterable[Arrival],
    config: SchedulerConfig,
    cost: StepSeconds,
    *,
    context: int = 1_000_000,
    kv_token_bytes: int = 0,
    window: float = 1.0,
    observe: Callable[[Scheduler, StepPlan, float], None] | None = None,
) -> Simulation:
    """Run all arrivals to their end.

    Args:
        context: most tokens of a request.
        kv_token_bytes: bytes of keys and values of a token, for a cost that counts them.
        window: seconds over which services are compared.
        observe: called with the scheduler, every plan before its commit, and the time when it began.
    """
    scheduler, deadlines = Scheduler(config, simulated_model(context)), Deadlines()
    coming = sorted(arrivals, key=lambda arrival: arrival.at)
    outcomes = [ArrivalOutcome(arrival) for arrival in coming]
    run = Simulation(outcomes)
    requests: dict[str, tuple[Request, ArrivalOutcome]] = {}
    services = _Services(window)
    now, index = 0.0, 0
    while index < len(coming) or len(scheduler):
        if not len(scheduler):
            now = max(now, coming[index].at)
        while index < len(coming) and coming[index].at <= now:
            request = request_of(coming[index], str(index))
            try:
                scheduler.add(request, now)
                deadlines.add(request, len(scheduler))
                requests[request.id] = (request, outcomes[index])
                services.joined(request)
            except RequestError as error:
                outcomes[index].refused = error
            index += 1
        for request in deadlines.due(now):
            scheduler.cancel(request.id)
            requests.pop(request.id)[1].expired = True
            services.left(request)
        plan = scheduler.schedule(now)
        if observe is not None:
            observe(scheduler, plan, now)
        services.begin(now, scheduler)
        seconds = cost.seconds(plan.tokens, len(plan.rows), kv_bytes(plan, kv_token_bytes))
        now += seconds
        run.seconds += seconds
        run.tokens += plan.tokens
        gained = scheduler.commit(plan, [Sampled([0]) if row.sample else Sampled() for row in plan.rows])
        services.ran(plan)
        for request, sampled in gained:
            requests[request.id][1].note(request, sampled, now)
            if request.finish is not None:
                services.left(request)
                del requests[request.id]
    run.windows = services.windows
    return run


class _Services:
    """The service of each tenant of the standard class, window by window."""

    def __init__(self, window: float) -> None:
        self.windows: list[dict[str, float]] = []
        self._live: Counter[str] = Counter()
        self._window = window
        self._until = window
        self._given: defaultdict[str, float] = defaultdict(float)
        self._waiting: set[str] | None = None
        self._most: dict[str, int] = {}
        """Most tokens that each request had computed: what is computed again is no service."""

    def joined(self, request: Request) -> None:
        self._live[request.tenant] += request.service == "standard"

    def left(self, request: Request) -> None:
        self._live[request.tenant] -= request.service == "standard"

    def begin(self, now: float, scheduler: Scheduler) -> None:
        """Begin a step."""
        if now >= self._until:
            if self._waiting:
                self.windows.append({tenant: self._given[tenant] for tenant in self._waiting})
            self._given.clear()
            self._waiting = None
            self._until = now + self._window
        running = Counter(request.tenant for request in scheduler.running if request.service == "standard")
        waiting = {tenant for tenant, live in self._live.items() if live > running[tenant]}
        self._waiting = waiting if self._waiting is None else self._waiting & waiting

    def ran(self, plan: StepPlan) -> None:
        for row in plan.rows:
            request, end = row.request, row.start + row.count
            most = self._most.get(request.id, request.cached)
            prompt = min(end, len(request.prompt)) - min(most, len(request.prompt))
            self._most[request.id] = max(most, end)
            self._given[request.tenant] += (max(prompt, 0) + OUTPUT_COST * row.sample) / request.weight
            if request.finish is not None:
                del self._most[request.id]


def request_of(arrival: Arrival, id: str) -> Request:
    return Request(
        id,
        arrival.prompt,
        SamplingParams(max_tokens=arrival.output, ignore_eos=True),
        arrival.at,
        tenant=arrival.tenant,
        weight=arrival.weight,
        service=arrival.service,
        queue_timeout=arrival.queue_timeout,
        chain_root=arrival.tenant.encode(),
    )
