"""Tenants of one service class and what each has paid; see `engine/scheduling/fair.py`. Pure."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from engine.request import Request
from engine.scheduling.policy import by_rank

INPUT_COST, OUTPUT_COST = 1.0, 2.0
CREDIT = 2048.0
"""How far below the class's mean a returning tenant may start, in units of the counters."""
PASS_WINDOW = 16
"""Most requests of a tenant that are considered in one step."""
MAX_IDLE = 1024
"""Most tenants without requests whose counters are remembered, per class."""


@dataclass(eq=False, slots=True)
class Flow:
    """One tenant in one service class."""

    tenant: str
    weight: float
    counter: float = 0.0
    """What the tenant has paid, divided by its weight."""
    served: int = 0
    """Number of the class's admission that was its last one: among equals the tenant served longest ago goes first."""
    line: list[Request] = field(default_factory=list)
    """Waiting requests, oldest first."""
    work: int = 0
    """Tokens that the waiting requests are expected to need."""
    cost: float = 0.0
    """Expected cost of the waiting requests."""
    passed: set[Request] = field(default_factory=set)
    """Waiting requests that were passed over in this step."""
    running: int = 0
    """Number of running requests."""

    @property
    def live(self) -> int:
        return len(self.line) + self.running

    @property
    def considered(self) -> bool:
        """Whether a waiting request of the tenant may be admitted in this step."""
        return len(self.passed) < min(len(self.line), PASS_WINDOW)


class ServiceQueue:
    """One service class: its flows by tenant."""

    def __init__(self, level: int, aging: float) -> None:
        self.level = level
        self.since = 0.0
        """Time since which the class has been waiting without being served."""
        self.weight = 0.0
        """Total weight of all flows that have requests."""
        self.floor = 0.0
        """What flows have paid on average, by weight, since the class was idle; at least the lowest counter."""
        self.running = self.waiting = self.work = 0
        self._aging = aging
        self._flows: dict[str, Flow] = {}
        self._backlog: dict[Flow, None] = {}
        """Flows with waiting requests, as an ordered set."""
        self._order: list[tuple[float, int, int, Flow]] | None = None
        """Heap of the backlog by counter and last admission, which may have grown since; None: to be built anew."""
        self._passed: list[Flow] = []
        """Flows with requests that were passed over in this step."""
        self._idle: dict[Flow, None] = {}
        """Flows without requests, whose counters are above what newcomers start from."""
        self._admissions = 0

    @property
    def turn(self) -> float:
        """Moment that orders the classes: the one with the smallest goes next."""
        return self.since + self.level * self._aging

    @property
    def flows(self) -> int:
        """Number of tenants that are remembered."""
        return len(self._flows)

    def lines(self) -> Iterator[Request]:
        for flow in self._backlog:
            yield from flow.line

    def flow(self, tenant: str) -> Flow:
        return self._flows[tenant]

    def ahead(self, request: Request) -> int:
        """Return the tokens of this class that go before a new request: until its tenant has paid for its backlog."""
        own = self._flows.get(request.tenant)
        entry = self._entry()
        start = max(own.counter, entry) if own else entry
        until = start + (own.cost / request.weight if own else 0.0)
        tokens = float(own.work) if own else 0.0
        for flow in self._backlog:
            if flow is not own:
                paid = max(until - flow.counter, 0.0) * flow.weight
                tokens += flow.work * min(1.0, paid / flow.cost)
        return round(tokens)

    def join(self, request: Request, since: float) -> None:
        """Queue a request that has no place in line yet; `since` counts for how long its class has waited."""
        flow = self._flows.get(request.tenant)
        if flow is None:
            flow = self._flows[request.tenant] = Flow(request.tenant, request.weight)
        if not flow.live:
            self._idle.pop(flow, None)
            self.weight += flow.weight
        if flow.weight != request.weight:
            self.weight += request.weight - flow.weight
            flow.weight = request.weight
        if not flow.line:
            flow.counter = max(flow.counter, self._entry())
        self._enqueue(flow, request, since)

    def rejoin(self, request: Request, now: float) -> None:
        flow = self._flows[request.tenant]
        flow.running -= 1
        self.running -= 1
        self._enqueue(flow, request, now)

    def leave(self, request: Request) -> None:
        flow = self._flows[request.tenant]
        self._dequeue(flow, request)
        self._order = None
        self._settle(flow)

    def open(self) -> None:
        """Begin a step: no request is passed over yet."""
        if self._passed:
            self._order = None
        for flow in self._passed:
            flow.passed.clear()
        self._passed.clear()

    def top(self) -> Flow | None:
        """Return the flow to be served next: the one with the lowest counter."""
        if self._order is None:
            self._order = [(flow.counter, flow.served, place, flow) for place, flow in enumerate(self._backlog)]
            heapq.heapify(self._order)
        while self._order:
            counter, served, place, flow = self._order[0]
            if not flow.considered:
                heapq.heappop(self._order)
            elif (counter, served) != (flow.counter, flow.served):  # both only grow: nobody below is overtaken unseen
                heapq.heapreplace(self._order, (flow.counter, flow.served, place, flow))
            else:
                return flow
        return None

    def pass_over(self, request: Request) -> None:
        flow = self._flows[request.tenant]
        flow.passed.add(request)
        self._passed.append(flow)

    def admit(self, request: Request, cached: int, now: float) -> None:
        flow = self._flows[request.tenant]
        self._dequeue(flow, request)
        flow.running += 1
        self.running += 1
        self._admissions += 1
        flow.served = self._admissions
        self.since = now
        if request.first_scheduled is None:
            self.charge(flow, INPUT_COST * (request.length - cached))

    def charge(self, flow: Flow, cost: float) -> None:
        flow.counter += cost / flow.weight
        self.floor += cost / self.weight

    def finish(self, request: Request) -> None:
        flow = self._flows[request.tenant]
        flow.running -= 1
        self.running -= 1
        self._settle(flow)

    def within_share(self, flow: Flow) -> bool:
        """Whether a flow with one more running request has no more than its share, by weight, of those of its class."""
        return not flow.running or (flow.running + 1) * self.weight <= self.running * flow.weight

    def check_integrity(self, running: Mapping[str, int]) -> None:
        """Check the bookkeeping against itself and against the running requests by tenant.

        Raises:
            RuntimeError: they differ.
        """
        flows, top = self._flows.values(), self.top()
        problems = {
            "running requests are counted wrongly": {flow.tenant: flow.running for flow in flows if flow.running}
            != running,
            "the class's sums are wrong": (self.waiting, self.running, self.work)
            != (
                sum(len(flow.line) for flow in flows),
                sum(flow.running for flow in flows),
                sum(flow.work for flow in flows),
            ),
            "a flow's work is counted wrongly": any(
                flow.work != sum(request.work for request in flow.line) for flow in flows
            ),
            "flows are listed wrongly": self._backlog.keys() != {flow for flow in flows if flow.line}
            or self._idle.keys() != {flow for flow in flows if not flow.live},
            "another flow goes first": any(
                top is None or (flow.counter, flow.served) < (top.counter, top.served)
                for flow in self._backlog
                if flow.considered
            ),
            "weights are summed up wrongly": not math.isclose(
                self.weight, sum(flow.weight for flow in flows if flow.live), abs_tol=1e-6
            ),
        }
        broken = [problem for problem, found in problems.items() if found]
        if broken:
            raise RuntimeError(f"the fair queue's books are broken: {'; '.join(broken)}")

    def _entry(self) -> float:
        """Return the least counter of a returning tenant; forget those who would start from it anyway."""
        self.floor = max(self.floor, min((flow.counter for flow in self._backlog), default=0.0))
        entry = max(self.floor - CREDIT, 0.0)
        for flow in [flow for flow in self._idle if flow.counter <= entry]:
            self._forget(flow)
        return entry

    def _enqueue(self, flow: Flow, request: Request, since: float) -> None:
        if not self.waiting:
            self.since = since
        self._backlog[flow] = None
        self._order = None
        insort(flow.line, request, key=by_rank)
        self._count(flow, request, 1)

    def _dequeue(self, flow: Flow, request: Request) -> None:
        del flow.line[bisect_left(flow.line, request.rank, key=by_rank)]
        flow.passed.discard(request)
        self._count(flow, request, -1)
        if not flow.line:
            del self._backlog[flow]

    def _count(self, flow: Flow, request: Request, sign: int) -> None:
        cost = INPUT_COST * request.length + OUTPUT_COST * (request.work - request.length)
        flow.cost += sign * cost
        flow.work += sign * request.work
        self.work += sign * request.work
        self.waiting += sign

    def _settle(self, flow: Flow) -> None:
        """A request of the flow has ended: remember what an idle one has paid, as long as that changes anything."""
        if flow.live:
            return
        self.weight -= flow.weight
        self._idle[flow] = None
        if not self.running and not self.waiting:  # a fresh start for everybody
            for flows in (self._flows, self._idle, self._passed):
                flows.clear()
            self.floor = self.weight = 0.0
        elif len(self._idle) > MAX_IDLE:
            self._forget(min(self._idle, key=lambda idle: idle.counter))

    def _forget(self, flow: Flow) -> None:
        del self._flows[flow.tenant], self._idle[flow]
