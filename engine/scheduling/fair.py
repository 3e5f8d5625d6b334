"""The policy `fair`: service classes, inside a class one virtual counter of tokens per tenant. Pure.

The counters are those of VTC ("Fairness in Serving Large Language Models", arXiv 2401.00588): a tenant pays 1 for an
input token that has to be computed, nothing for a cached one, 2 for an output token, each divided by its weight; the
one with the lowest counter goes next. Tokens that a preempted request computes again are free: it did not want that.

* Who had nothing waiting is lifted to the *floor* of its class less a credit, so that idleness earns no more than that.
  The floor is at least the lowest counter of those that wait, as in the paper, and rises at the class's mean rate
  besides (the virtual time of WF2Q+), so that a row of new tenants does not push an old one back for ever.
* A tenant that has waited `aging` seconds without being served gets one turn whatever its counter, but a class gives
  away only one such turn in `aging` seconds.
* Classes have counters of their own: what a tenant lets run in the background does not cost it its place in front. A
  class goes before a lower one unless that has waited, without being served, `aging` seconds longer for every level.
  It then gets one turn, however much waits in it.
* Inside a tenant the oldest request goes first, but of the first few one whose prefix is cached may overtake it, a
  bounded number of times (after DLPM, arXiv 2501.14312).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from engine.request import Request
from engine.scheduling.flows import INPUT_COST, OUTPUT_COST, PASS_WINDOW, Flow, ServiceQueue
from engine.scheduling.policy import LEVELS, PromptShare, Shortage, Victim
from engine.wire import ServiceClass

PROMPT_FACTOR = 4.0
"""How much more of a step's prompt tokens a class gets than the one below it."""
BONUS_WINDOW = 4
"""Among how many of a tenant's requests a cached prefix is looked for."""
MAX_OVERTAKEN = 4
"""How many of its tenant's requests may overtake one because their prefixes are cached."""


class Fair:
    """See the module. `cached` gives the number of a waiting request's tokens that are in the prefix cache."""

    def __init__(self, aging: float, cached: Callable[[Request], int]) -> None:
        self._cached = cached
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
        """What a live tenant has paid."""
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
            queue.open(now)

    def first(self) -> Request | None:
        tops = [(queue.turn, queue.level, flow) for queue in self._queues.values() if (flow := queue.top()) is not None]
        if not tops:
            return None
        flow = min(tops, key=lambda top: top[:2])[2]
        window = [request for request in flow.line[:PASS_WINDOW] if request not in flow.passed]
        oldest = window[0]
        if len(window) > 1 and flow.overtaken < MAX_OVERTAKEN:
            hits = [self._cached(request) for request in window[:BONUS_WINDOW]]
            best = hits.index(max(hits))  # the oldest of equals
            if 2 * hits[best] >= window[best].length:
                return window[best]
        return oldest

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
        """Who is better off gives way: a lower class, a tenant with a higher counter, a later request of its own."""
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
        lower = any(other.rows for other in self._queues.values() if other.level > queue.level)
        return lower or queue.within_share(queue.flow(request.tenant))

    def claim(
        self, request: Request, shortage: Shortage, running: Sequence[Request], victims: Callable[[], Sequence[Victim]]
    ) -> Sequence[Request]:
        """Requests of lower classes give way, and those of tenants that keep their share without them.

        A share is by weight among the tenants of the class, of the rows or KV blocks that the class has. Because the
        other tenant still has its share afterwards, it cannot claim the same room back. It must also have had more, by
        at least what would have to be computed again: else that would be wasted on a difference that passes by itself.
        """
        if not self.within_share(request):
            return ()
        queue = self._queues[request.service]
        mine = queue.flow(request.tenant)
        row, blocks = shortage.row, shortage.blocks
        rows: Counter[Flow] = Counter()
        held: Counter[Flow] = Counter()
        for other in running:
            if other.service == request.service:
                flow = queue.flow(other.tenant)
                rows[flow] += 1
                held[flow] += len(other.block_table)
        total = held.total()
        fits = blocks <= 0 or (held[mine] + shortage.needs) * queue.weight <= total * mine.weight
        entitled = queue.within_share(mine) and (fits or not mine.rows)
        chosen = []
        for victim in victims():
            other, size = victim.request, len(victim.request.block_table)
            if other.service == request.service:
                flow = queue.flow(other.tenant)
                keeps_rows = (rows[flow] - 1) * queue.weight >= queue.rows * flow.weight
                keeps_blocks = (held[flow] - size) * queue.weight >= total * flow.weight
                waste = INPUT_COST * victim.recompute / mine.weight
                keeps_share = (row and keeps_rows) or (blocks > 0 and keeps_blocks)
                if flow is mine or not entitled or not keeps_share or flow.counter - mine.counter <= waste:
                    continue
                rows[flow] -= 1
                held[flow] -= size
            elif LEVELS[other.service] < queue.level:
                continue
            chosen.append(other)
            row, blocks = False, blocks - victim.frees
            if blocks <= 0:
                return chosen
        return ()

    def share(self, request: Request) -> PromptShare:
        """Of a step's prompt tokens a tenant that has paid less gets more; among equals, weights and classes decide."""
        queue = self._queues[request.service]
        flow = queue.flow(request.tenant)
        factor = PROMPT_FACTOR**-queue.level
        return PromptShare((queue.level, request.tenant), flow.weight * factor, (flow.counter - queue.floor) / factor)

    def check_integrity(self, running: Sequence[Request]) -> None:
        rows = Counter((request.service, request.tenant) for request in running)
        for service, queue in self._queues.items():
            queue.check_integrity({tenant: count for (other, tenant), count in rows.items() if other == service})
