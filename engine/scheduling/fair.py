"""The policy `fair`: service classes, and inside a class one virtual counter of tokens per tenant. Pure.

The counters are those of VTC ("Fairness in Serving Large Language Models", arXiv 2401.00588): a tenant pays 1 for an
input token that is computed, 2 for an output token, and nothing for a cached one or one computed again after a
preemption, each divided by its weight. The tenant with the lowest counter goes next, with its oldest request.

* A tenant that had nothing waiting is lifted to the *floor* of its class less `CREDIT`. The floor is at least the
  lowest counter of those that wait, as in the paper, and also rises at the class's mean rate (the virtual time of
  WF2Q+), so that new tenants, one after the other, do not push an old one back for ever.
* A class goes before a lower one until that has waited unserved for `aging` seconds more per level; the lower one then
  gets one turn, however much waits in it. Each class has its own counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from engine.request import Request
from engine.scheduling.flows import OUTPUT_COST, Flow, ServiceQueue
from engine.scheduling.policy import LEVELS, PromptShare, Shortage, Victim
from engine.wire import ServiceClass


class Fair:
    """Service classes, each with its tenants' counters; see the module."""

    def __init__(self, aging: float) -> None:
        self._queues: dict[ServiceClass, ServiceQueue] = {
            service: ServiceQueue(level, aging) for service, level in LEVELS.items()
        }
        self._aging = aging
        self._arrivals = 0
        self._now = 0.0

    def __len__(self) -> int:
        return sum(queue.waiting for queue in self._queues.values())

    def __iter__(self) -> Iterator[Request]:
        for queue in self._queues.values():
            yield from queue.lines()

    @property
    def work(self) -> int:
        return sum(queue.work for queue in self._queues.values())

    def ahead(self, request: Request) -> int:
        own = self._queues[request.service]
        better = sum(queue.work for queue in self._queues.values() if queue.level < own.level)
        return better + own.ahead(request)

    def counter(self, service: ServiceClass, tenant: str) -> float:
        """Return what a live tenant has paid."""
        return self._queues[service].flow(tenant).counter

    def join(self, request: Request) -> None:
        self._arrivals += 1
        request.rank = (request.arrival + LEVELS[request.service] * self._aging, self._arrivals)
        self._queues[request.service].join(request, request.arrival)

    def rejoin(self, request: Request) -> None:
        self._queues[request.service].rejoin(request, self._now)

    def leave(self, request: Request) -> None:
        self._queues[request.service].leave(request)

    def withdraw(self, request: Request) -> None:
        self.leave(request)

    def restore(self, request: Request) -> None:
        self._queues[request.service].join(request, self._now)

    def open(self, now: float) -> None:
        self._now = now
        for queue in self._queues.values():
            queue.open()

    def first(self) -> Request | None:
        tops = [(queue.turn, queue.level, flow) for queue in self._queues.values() if (flow := queue.top()) is not None]
        if not tops:
            return None
        flow = min(tops, key=lambda top: top[:2])[2]
        return next(request for request in flow.line if request not in flow.passed)

    def pass_over(self, request: Request) -> None:
        self._queues[request.service].pass_over(request)

    def admit(self, request: Request, cached: int) -> None:
        self._queues[request.service].admit(request, cached, self._now)

    def generated(self, request: Request, tokens: int) -> None:
        queue = self._queues[request.service]
        queue.charge(queue.flow(request.tenant), OUTPUT_COST * tokens)

    def finish(self, request: Request) -> None:
        self._queues[request.service].finish(request)

    def may_preempt(self, request: Request, victim: Request) -> bool:
        """Whether a victim gives way: of a lower class, of a tenant with a higher counter, or later of its own."""
        level, other = LEVELS[request.service], LEVELS[victim.service]
        if level != other:
            return level < other
        queue = self._queues[request.service]
        mine, theirs = queue.flow(request.tenant), queue.flow(victim.tenant)
        if mine is theirs or mine.counter == theirs.counter:
            return request.rank < victim.rank
        return mine.counter < theirs.counter

    def within_share(self, request: Request) -> bool:
        queue = self._queues[request.service]
        lower = any(other.running for other in self._queues.values() if other.level > queue.level)
        return lower or queue.within_share(queue.flow(request.tenant))

    def claim(
        self, request: Request, shortage: Shortage, running: Sequence[Request], victims: Callable[[], Sequence[Victim]]
    ) -> Sequence[Request]:
        """Choose requests that give way: of lower classes, and of tenants that paid more and keep their share without.

        A share is by weight among the tenants of the class, of the class's running requests. Because the other tenant
        still has its share afterwards, it cannot claim the same room back. For KV blocks a tenant that runs already
        must keep within its share of these, too.
        """
        if not self.within_share(request):
            return ()
        queue = self._queues[request.service]
        mine = queue.flow(request.tenant)
        same_class = [other for other in running if other.service == request.service]
        held = sum(len(other.block_table) for other in same_class)
        own = sum(len(other.block_table) for other in same_class if other.tenant == request.tenant)
        fits = shortage.blocks <= 0 or (own + shortage.needs) * queue.weight <= held * mine.weight
        entitled = queue.within_share(mine) and (fits or not mine.running)
        blocks, taken = shortage.blocks, Counter[Flow]()
        chosen = []
        for victim in victims():
            other = victim.request
            if other.service == request.service:
                flow = queue.flow(other.tenant)
                keeps_share = (flow.running - taken[flow] - 1) * queue.weight >= queue.running * flow.weight
                if not (entitled and keeps_share and flow.counter > mine.counter):
                    continue
                taken[flow] += 1
            elif LEVELS[other.service] < queue.level:
                continue
            chosen.append(other)
            blocks -= victim.frees
            if blocks <= 0:
                return chosen
        return ()

    def share(self, request: Request) -> PromptShare:
        """Return the tenant's part of a step's prompt tokens: who paid less gets more; among equals, weights decide."""
        queue = self._queues[request.service]
        flow = queue.flow(request.tenant)
        return PromptShare((queue.level, request.tenant), flow.weight, flow.counter - queue.floor)

    def check_integrity(self, running: Sequence[Request]) -> None:
        counts = Counter((request.service, request.tenant) for request in running)
        for service, queue in self._queues.items():
            queue.check_integrity({tenant: count for (other, tenant), count in counts.items() if other == service})
