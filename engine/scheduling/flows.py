"""The tenants of one service class and what each has paid; see `engine/scheduling/fair.py`. Pure."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from engine.request import Request
from engine.scheduling.policy import by_rank

INPUT_COST, OUTPUT_COST = 1.0, 2.0
CREDIT = 2048.0
"""How far below the class's mean a tenant may start that comes back, in units of the counters."""
PASS_WINDOW = 16
"""How many of a tenant's requests are considered in one step."""
MAX_IDLE = 1024
"""Tenants without requests whose counters are remembered, per class."""

_Entry = tuple[float, int, int, "Flow"]


@dataclass(eq=False, slots=True)
class Flow:
    """One tenant in one service class."""

    tenant: str
    number: int
    weight: float
    counter: float = 0.0
    served: int = 0
    """Which admission of the class was its last one: among equals the one served longest ago goes first."""
    line: list[Request] = field(default_factory=list)
    """Waiting requests, oldest first."""
    work: int = 0
    """Tokens that they are expected to need."""
    cost: float = 0.0
    """What those will cost."""
    passed: set[Request] = field(default_factory=set)
    """Those passed over in this step."""
    overtaken: int = 0
    """How often a cached prefix has gone before `line[0]`."""
    rows: int = 0
    """Running requests."""
    since: float = 0.0
    """Since when it has been waiting without being served."""
    entry: _Entry | None = None
    """Where this flow stands in one of its queue's heaps; every other entry of it is stale."""

    @property
    def live(self) -> int:
        return len(self.line) + self.rows


class ServiceQueue:
    """One service class: its flows, by tenant."""

    def __init__(self, level: int, aging: float) -> None:
        self.level = level
        self.since = 0.0
        """Since when it has been waiting without being served."""
        self.weight = 0.0
        """Of all flows that have requests."""
        self.floor = 0.0
        """What flows have paid on average, by weight, since the class was idle; at least the lowest counter."""
        self.rows = self.waiting = self.work = 0
        self._aging = aging
        self._now = 0.0
        self._out_of_turn = -math.inf
        """When a flow was last served out of turn."""
        self._patience: OrderedDict[Flow, None] = OrderedDict()
        """The flows that have somebody waiting; who was served longest ago first."""
        self._flows: dict[str, Flow] = {}
        self._backlog: list[_Entry] = []
        """A heap of the flows that have somebody waiting. Their counters may have grown since they were put in."""
        self._passed: list[Flow] = []
        """Flows of which requests were passed over in this step."""
        self._idle: list[_Entry] = []
        """A heap of flows without requests, whose counters are above the floor."""
        self._numbers = count()
        self._admissions = 0

    @property
    def turn(self) -> float:
        """The class with the smallest turn goes next."""
        return self.since + self.level * self._aging

    @property
    def flows(self) -> int:
        """Tenants that are remembered."""
        return len(self._flows)

    def lines(self) -> Iterator[Request]:
        for flow in self._flows.values():
            yield from flow.line

    def flow(self, tenant: str) -> Flow:
        return self._flows[tenant]

    def ahead(self, request: Request) -> int:
        """Tokens of this class that go before a new request of it: until its tenant has paid for its own backlog."""
        own = self._flows.get(request.tenant)
        entry = self._entry()
        start = max(own.counter, entry) if own else entry
        until = start + (own.cost / request.weight if own else 0.0)
        tokens = float(own.work) if own else 0.0
        for flow in self._flows.values():
            if flow.line and flow is not own:
                paid = max(until - flow.counter, 0.0) * flow.weight
                tokens += flow.work * min(1.0, paid / flow.cost)
        return round(tokens)

    def join(self, request: Request, since: float) -> None:
        """A request that has no place in line yet begins to wait; `since` counts for who has waited too long."""
        flow = self._flows.get(request.tenant)
        if flow is None:
            flow = self._flows[request.tenant] = Flow(request.tenant, next(self._numbers), request.weight)
        if not flow.live:
            flow.entry = None
            self.weight += flow.weight
        if flow.weight != request.weight:
            self.weight += request.weight - flow.weight
            flow.weight = request.weight
        if not flow.line:
            flow.counter = max(flow.counter, self._entry())
            self._wait(flow, since)
        if not self.waiting:
            self.since = since
        self._enqueue(flow, request)

    def rejoin(self, request: Request, now: float) -> None:
        flow = self._flows[request.tenant]
        flow.rows -= 1
        self.rows -= 1
        if not flow.line:
            self._wait(flow, now)
        if not self.waiting:
            self.since = now
        self._enqueue(flow, request)

    def leave(self, request: Request) -> None:
        flow = self._flows[request.tenant]
        self._dequeue(flow, request)
        self._settle(flow)

    def open(self, now: float) -> None:
        """A step begins: nobody is passed over yet."""
        self._now = now
        self._readmit()

    def _readmit(self) -> None:
        for flow in self._passed:
            flow.passed.clear()
            if flow.line and flow.entry is None:
                self._file(flow)
        self._passed.clear()

    def top(self) -> Flow | None:
        """The flow to be served next: the one with the lowest counter, or now and then one that has waited too long."""
        lowest = self._lowest()
        if lowest is None or self._now - self._out_of_turn < self._aging:
            return lowest
        patient = next(iter(self._patience))
        overdue = self._now - patient.since > self._aging > 0 and patient.entry is not None
        return patient if overdue else lowest

    def _lowest(self) -> Flow | None:
        heap = self._backlog
        while heap:
            entry = heap[0]
            flow = entry[3]
            if flow.entry is not entry:
                heapq.heappop(heap)
            elif entry[0] != flow.counter or entry[1] != flow.served:
                flow.entry = (flow.counter, flow.served, flow.number, flow)
                heapq.heapreplace(heap, flow.entry)
            else:
                return flow
        return None

    def pass_over(self, request: Request) -> None:
        flow = self._flows[request.tenant]
        flow.passed.add(request)
        self._passed.append(flow)
        self._withhold(flow)

    def admit(self, request: Request, cached: int, now: float) -> None:
        flow = self._flows[request.tenant]
        if flow is not self._lowest():
            self._out_of_turn = now
        flow.overtaken = 0 if request is flow.line[0] else flow.overtaken + 1
        self._dequeue(flow, request)
        flow.rows += 1
        self.rows += 1
        self._admissions += 1
        flow.served = self._admissions
        self.since = now
        if flow.line:
            self._wait(flow, now)
        if request.first_scheduled is None:
            self.charge(flow, INPUT_COST * (request.length - cached))

    def charge(self, flow: Flow, cost: float) -> None:
        flow.counter += cost / flow.weight
        self.floor += cost / self.weight

    def finish(self, request: Request) -> None:
        flow = self._flows[request.tenant]
        if not request.output:  # what was not computed of its prompt need not be paid
            unused = min(request.uncomputed, len(request.prompt) - request.cached)
            flow.counter -= INPUT_COST * unused / flow.weight
            if flow.line and flow.entry is not None:
                self._file(flow)
        flow.rows -= 1
        self.rows -= 1
        self._settle(flow)

    def within_share(self, flow: Flow) -> bool:
        """Whether a flow with one more row has no more than its part, by weight, of the rows that its class has."""
        return not flow.rows or (flow.rows + 1) * self.weight <= self.rows * flow.weight

    def check_integrity(self, rows: Mapping[str, int]) -> None:
        """Compare the books with each other and with the running requests by tenant.

        Raises:
            RuntimeError: they differ.
        """
        flows = self._flows.values()
        problems = {
            "rows are counted wrongly": {flow.tenant: flow.rows for flow in flows if flow.rows} != rows,
            "the class's sums are wrong": (self.waiting, self.rows, self.work)
            != (
                sum(len(flow.line) for flow in flows),
                sum(flow.rows for flow in flows),
                sum(flow.work for flow in flows),
            ),
            "a flow's work is counted wrongly": any(
                flow.work != sum(request.work for request in flow.line) for flow in flows
            ),
            "a flow is in no heap": any(
                flow.entry is None and not flow.passed and (flow.line or not flow.rows) for flow in flows
            ),
            "weights are summed up wrongly": not math.isclose(
                self.weight, sum(flow.weight for flow in flows if flow.live), abs_tol=1e-6
            ),
        }
        broken = [problem for problem, found in problems.items() if found]
        if broken:
            raise RuntimeError(f"the fair queue's books are broken: {'; '.join(broken)}")

    def _entry(self) -> float:
        """The counter that who comes back starts from at least."""
        self._readmit()
        flow = self._lowest()
        if flow is not None:
            self.floor = max(self.floor, flow.counter)
        entry = max(self.floor - CREDIT, 0.0)
        while self._idle and (self._idle[0][0] <= entry or self._idle[0][3].entry is not self._idle[0]):
            self._forget(heapq.heappop(self._idle))
        return entry

    def _wait(self, flow: Flow, since: float) -> None:
        flow.since = since
        self._patience[flow] = None
        self._patience.move_to_end(flow)

    def _enqueue(self, flow: Flow, request: Request) -> None:
        insort(flow.line, request, key=by_rank)
        self._count(flow, request, 1)
        if flow.entry is None and not flow.passed:
            self._file(flow)

    def _dequeue(self, flow: Flow, request: Request) -> None:
        del flow.line[bisect_left(flow.line, request.rank, key=by_rank)]
        flow.passed.discard(request)
        self._count(flow, request, -1)
        self._withhold(flow)
        if not flow.line:
            del self._patience[flow]

    def _count(self, flow: Flow, request: Request, sign: int) -> None:
        cost = INPUT_COST * request.length + OUTPUT_COST * (request.work - request.length)
        flow.cost += sign * cost
        flow.work += sign * request.work
        self.work += sign * request.work
        self.waiting += sign

    def _withhold(self, flow: Flow) -> None:
        """Take a flow out of the backlog if nobody in it can be served in this step."""
        if len(flow.passed) >= min(len(flow.line), PASS_WINDOW):
            flow.entry = None

    def _file(self, flow: Flow) -> None:
        flow.entry = (flow.counter, flow.served, flow.number, flow)
        heapq.heappush(self._backlog, flow.entry)

    def _settle(self, flow: Flow) -> None:
        """A request of the flow has ended: forget the flow if that changes nothing for it."""
        if flow.live:
            return
        self.weight -= flow.weight
        if not self.rows and not self.waiting:  # a fresh start for everybody
            self._flows.clear()
            for entries in (self._backlog, self._passed, self._idle, self._patience):
                entries.clear()
            self.floor = self.weight = 0.0
            return
        flow.entry = (flow.counter, flow.served, flow.number, flow)
        heapq.heappush(self._idle, flow.entry)
        while len(self._idle) > MAX_IDLE:
            self._forget(heapq.heappop(self._idle))

    def _forget(self, entry: _Entry) -> None:
        flow = entry[3]
        if flow.entry is entry:
            del self._flows[flow.tenant]
