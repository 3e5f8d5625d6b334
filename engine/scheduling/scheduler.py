"""Decides what each step runs. Pure: state and `now` in, a `StepPlan` out; no clock, no torch, no I/O.

Steps mix prefill and decode (as vLLM's V1 scheduler does). Each has one token budget: requests that decode take one
token each, then prompts take the rest, in chunks if they must, so that a long prompt never stops the others. The policy
decides who goes first (`engine/scheduling/policy.py`). Under every policy:

* A request enters when blocks for all its known tokens are available, plus one for each running request; no later one
  overtakes it because it is smaller. It waits for its adapter first (`engine/scheduling/adapters.py`).
* When blocks run out, the request in need preempts the one with the least to compute again, of those that the policy
  lets it preempt, or waits with its KV intact. A preempted request's full blocks stay cached as long as they can.
* The *first in line*, the running request that is oldest by `rank`, may preempt anybody and is itself preempted only so
  that another adapter gets in, so it progresses in every step. `rank` is fixed: who runs long enough becomes the first.
* No request is preempted more than `max_preemptions` times (`engine/scheduling/preemption.py` says why all still end).

Steps run one after another: blocks freed by `commit` are reusable at once, because no launched step touches them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence

from engine.adapters.residency import BASE_ONLY, Residency, ResidencyConfig
from engine.cache.blocks import BLOCK_SIZE, BlockPool, blocks_of
from engine.cache.host_tier import HostTier
from engine.plan import Sampled, StepPlan
from engine.request import Request, State
from engine.scheduling.adapters import AdapterAdmission
from engine.scheduling.config import SchedulerConfig
from engine.scheduling.drafts import reserve_drafts, return_drafts
from engine.scheduling.fair import Fair
from engine.scheduling.forecast import Forecast, refuse_if_hopeless
from engine.scheduling.host_loads import HostLoads
from engine.scheduling.line import WaitingLine
from engine.scheduling.policy import QueuePolicy, Shortage, Victim, by_rank
from engine.scheduling.preemption import Preemption
from engine.scheduling.prefixes import Prefixes
from engine.scheduling.shares import PromptTokens
from engine.scheduling.step import PlannedStep
from engine.scheduling.stopping import accept
from engine.wire import FinishReason, ModelInfo, PolicyName


class Scheduler:
    """Decides the steps of one engine: its queue, running set and KV bookkeeping."""

    def __init__(
        self, config: SchedulerConfig, model: ModelInfo, adapters: ResidencyConfig = BASE_ONLY, host_blocks: int = 0
    ) -> None:
        self.config = config
        self.pool = BlockPool(config.blocks, HostTier(host_blocks))
        self.adapters = AdapterAdmission(Residency(self.pool, adapters), adapters)
        self._has_adapters = adapters is not BASE_ONLY
        blocks = config.blocks - self.adapters.residency.share
        self.context = min(model.context, blocks * BLOCK_SIZE)
        """Most tokens of one request: it alone always fits into the cache, whatever adapters hold."""
        self.prefix_hit_tokens = self.prompt_tokens = self.output_tokens = self.preemptions = 0
        """Totals since the start."""
        self._model = model
        self._requests: dict[str, Request] = {}
        self._running: list[Request] = []
        """Running requests in line order."""
        self._prefixes = Prefixes(self.pool)
        self.loads = HostLoads(self.pool, self._prefixes, config.host_load_tokens)
        self._policy: QueuePolicy = _policy_named(config.policy, config.aging)
        """Policy that holds the waiting requests."""
        self._waiting_tokens = 0
        self._preemption = Preemption(self.pool, config.max_preemptions, self.context, blocks)
        self._forecast = Forecast()

    def __len__(self) -> int:
        """Number of live requests."""
        return len(self._requests)

    def __contains__(self, id: str) -> bool:
        return id in self._requests

    @property
    def running(self) -> Sequence[Request]:
        return self._running

    @property
    def waiting(self) -> QueuePolicy:
        """Waiting requests that stand in line."""
        return self._policy

    @property
    def uncomputed_tokens(self) -> int:
        """Number of tokens to be run before every known request decodes."""
        prefilling = sum(request.uncomputed for request in self._running if request.uncomputed > 1)
        return self._waiting_tokens + prefilling

    @property
    def queue_seconds(self) -> float:
        """Predicted seconds until a request behind all others would start."""
        return self._queue_seconds(self._policy.work)

    def add(self, request: Request, now: float) -> None:
        """Put a request into the queue. Its id must be new, and its prompt shorter than `context`.

        Raises:
            RequestError: the queue is longer than the request may wait.
        """
        if request.length >= self.context:
            raise ValueError(f"request {request.id}: {request.length} tokens can never be served")
        left = None if request.queue_timeout is None else request.arrival + request.queue_timeout - now
        limits = [limit for limit in (left, self.config.max_queue_seconds) if limit is not None]
        if limits:
            refuse_if_hopeless(self._queue_seconds(self._policy.ahead(request)), min(limits))
        self._requests[request.id] = request
        request.work = self._forecast.work(request)
        self._policy.join(request)
        self._waiting_tokens += request.length
        if request.adapter is not None:
            self.adapters.arrive(request)
            self._wait_for_adapter(request, request.arrival)

    def cancel(self, id: str, reason: FinishReason = "cancelled") -> Request | None:
        """End a request wherever it is and free its blocks; return it, None if there is no such request."""
        request = self._requests.get(id)
        if request is not None:
            self._finish(request, reason)
        return request

    def schedule(self, now: float) -> StepPlan:
        """Choose the next step's rows and give them the blocks they write to."""
        step = PlannedStep(now, PromptTokens(self.config.step_tokens, self._policy.share))
        if self._has_adapters:
            self._move_adapters(step)
        self._continue(step)
        self._admit(step)
        rows = step.rows()
        self._forecast.step(now, sum(row.count for row in rows))
        return StepPlan(rows, step.preempted)

    def reserve(self, plan: StepPlan, depths: Mapping[str, int]) -> dict[str, int]:
        """Give rows that decode blocks for drafts of up to `depths` tokens; return how many tokens each may draft."""
        return reserve_drafts(
            plan, depths, self.pool, budget=self.config.step_tokens - plan.tokens, context=self.context
        )

    def commit(self, plan: StepPlan, sampled: Iterable[Sampled]) -> list[tuple[Request, Sampled]]:
        """Account for a step that has run: tokens appended, full blocks published, finished requests freed.

        Returns what each request gained, in the plan's order, without those that were cancelled meanwhile.
        """
        gained = []
        confirmed = 0
        for row, result in zip(plan.rows, sampled, strict=True):
            request = row.request
            if request.state is not State.RUNNING:
                continue
            result, reason = accept(request, result, self._model.eos_token_ids, self.context)
            said = len(result.tokens)
            self.output_tokens += said
            self._policy.generated(request, said)
            # All of these but the last have run: they are the confirmed part of the draft.
            ahead = said - 1 if said else 0
            confirmed += ahead
            self._prefixes.publish(request, row.start + row.count + ahead)
            if reason is not None:
                self._forecast.answered(len(request.prompt), len(request.output))
                self._finish(request, reason)
            else:
                return_drafts(request, self.pool)
            gained.append((request, result))
        self._forecast.confirmed(confirmed)
        return gained

    def check_integrity(self) -> None:
        """Check all bookkeeping for consistency.

        Raises:
            RuntimeError: they differ; the message says where.
        """
        tables = [request.block_table for request in self._running]
        self.pool.check_integrity([*tables, *(load.blocks for load in self.loads)])
        self.pool.check_holders({request.holder: request.block_table for request in self._running})
        self.loads.check_integrity()
        self._prefixes.check_integrity(self._running)
        self._policy.check_integrity(self._running)
        waiting = [request for request in self._requests.values() if request.state is State.WAITING]
        self.adapters.check_integrity(self._running, self._policy)
        if len(self._policy) + self.adapters.standing_aside != len(waiting) or len(self._running) + len(waiting) != len(
            self
        ):
            raise RuntimeError("a request is lost between queue and running set")
        if self._waiting_tokens != sum(request.length for request in waiting):
            raise RuntimeError("waiting tokens are counted wrongly")
        if any(request.block_table or request.computed for request in waiting):
            raise RuntimeError("a waiting request holds KV blocks")
        if self._preemption.reserved != sum(request.reserved_blocks for request in self._running):
            raise RuntimeError("reserved KV blocks are counted wrongly")

    def _continue(self, step: PlannedStep) -> None:
        """Let running requests go on: those that decode take a token each, prompts share the rest."""
        decoding = [request for request in self._running if request.uncomputed == 1]
        prefilling = [request for request in self._running if request.uncomputed != 1]
        for request in decoding:
            if request.state is State.RUNNING and self._make_room(request, step):  # not preempted in this very loop
                step.decodes[request] = None
        step.prompts.budget -= len(step.decodes)
        for request in prefilling:
            if request.state is State.RUNNING and request.load is None:
                step.prompts.add(request)

    def _admit(self, step: PlannedStep) -> None:
        """Move requests from the queue into the step while tokens, blocks and `max_running` allow it."""
        policy = self._policy
        policy.open(step.now)
        passed_over = 0
        while (request := policy.first()) is not None and step.prompts.has_room(request):
            if not self._may_run_more and not policy.within_share(request):
                return
            if request.adapter is not None and not self.adapters.admits(request):
                self._withdraw(self.adapters.close(request.adapter))
                continue
            hits = self._prefixes.match(request)
            if self._prefixes.underway(request, len(hits)):
                policy.pass_over(request)
                passed_over += 1
                if passed_over == self.config.max_running:  # a bound on the work of one step
                    return
                continue
            blocks = self._preemption.blocks_at_admission(request) - len(hits)
            if not self._find_room(request, hits, blocks, step):
                return
            on_host = self.loads.found(request, len(hits))
            policy.admit(request, (len(hits) + len(on_host)) * BLOCK_SIZE)
            self._start(request, hits, on_host, blocks, step.now)
            if request.load is None:
                step.prompts.add(request)

    def _find_room(self, request: Request, hits: Sequence[int], blocks: int, step: PlannedStep) -> bool:
        """Whether a waiting request may run and gets `blocks` beside its cached ones, with preemptions or without."""
        if self._missing(blocks, ()) > 0 and not self._policy.within_share(request):
            return False  # no request gives way, whatever its cached blocks add to what is missing
        if not self._preemption.may_run(request, self._running):
            return False
        missing = self._missing(blocks, hits)
        if self._may_run_more and missing <= 0:
            return True

        def victims() -> list[Victim]:
            allowed = self._preemption.victims(self._running, first=self._running[0])
            return [Victim(other, self._preemption.frees(other)) for other in allowed]

        shortage = Shortage(missing, blocks + len(hits))
        for victim in self._policy.claim(request, shortage, self._running, victims) if self._running else ():
            self._preempt(victim, step)
        return self._may_run_more and self._missing(blocks, hits) <= 0

    @property
    def _may_run_more(self) -> bool:
        return len(self._running) < self.config.max_running

    def _missing(self, blocks: int, hits: Sequence[int]) -> int:
        """Return how many blocks are missing for a request that needs `blocks` beside its cached ones."""
        kept = len(self._running) + self.adapters.reserved
        return blocks + self.pool.idle(hits) + kept - self.pool.available

    def _start(self, request: Request, hits: list[int], on_host: list[bytes], blocks: int, now: float) -> None:
        self._waiting_tokens -= request.length
        request.move_to(State.RUNNING)
        if request.adapter is not None:
            self.adapters.start(request)
        host_blocks = self.pool.host.hold(on_host)  # before allocations push others there
        self.pool.share(hits, request.holder)
        request.block_table = hits + self.pool.allocate(blocks, request.holder)
        request.computed = len(hits) * BLOCK_SIZE
        self._preemption.reserve(request)
        if on_host:
            self.loads.begin(request, on_host, host_blocks)
        if request.first_scheduled is None:
            request.first_scheduled = now
            request.cached = min(request.computed + len(on_host) * BLOCK_SIZE, len(request.prompt))
            self.prefix_hit_tokens += request.cached
            self.prompt_tokens += len(request.prompt)
        insort(self._running, request, key=by_rank)
        self._prefixes.begin(request)

    def _make_room(self, request: Request, step: PlannedStep) -> bool:
        """Extend a decoding request's block table over its next token, by preemption if need be.

        Only decoding requests can be in need: a prompt gets all its blocks at admission.
        """
        missing = blocks_of(request.length) - len(request.block_table)
        if missing <= 0:
            return True
        while missing > self.pool.available:
            if (aside := self.adapters.evict()) is not None:
                self._withdraw(aside)
                continue
            first = self._running[0]
            others = (
                other
                for other in self._running
                if other is not request and (request is first or self._policy.may_preempt(request, other))
            )
            victims = self._preemption.victims(others, first)
            if not victims:
                return False
            self._preempt(victims[0], step)
        request.block_table += self.pool.allocate(missing, request.holder)
        return True

    def _preempt(self, victim: Request, step: PlannedStep) -> None:
        step.decodes.pop(victim, None)
        step.prompts.discard(victim)
        self._release(victim)
        victim.move_to(State.WAITING)
        victim.work = self._forecast.work(victim)
        self._policy.rejoin(victim)
        self._waiting_tokens += victim.length
        if victim.adapter is not None:
            self.adapters.stop(victim, ended=False)
            self._wait_for_adapter(victim, step.now)
        step.preempted.append(victim)
        victim.preemptions += 1
        self.preemptions += 1

    def _move_adapters(self, step: PlannedStep) -> None:
        """Move requests into the line or aside, and running ones out, as their adapters require."""
        changes = self.adapters.relieve(step.now, len(self._running))
        self._withdraw(changes.leaving)
        for request in changes.preempted:
            if not self._preemption.is_safe(request):
                self._preempt(request, step)
        changes = self.adapters.advance(len(self._running))
        self._withdraw(changes.leaving)
        for request in changes.joining:
            self._policy.restore(request)

    def _wait_for_adapter(self, request: Request, now: float) -> None:
        if not self.adapters.wait(request, now):
            self._withdraw([request])

    def _withdraw(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._policy.withdraw(request)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """End a request wherever it is."""
        request.finish = reason
        del self._requests[request.id]
        if request.state is State.RUNNING:
            self._policy.finish(request)
            self._release(request)
            if request.adapter is not None:
                self.adapters.stop(request, ended=True)
        else:
            if request.adapter is None or self.adapters.unwait(request):
                self._policy.leave(request)
            self._waiting_tokens -= request.length
        request.move_to(State.FINISHED)
        if not self._requests:
            self._forecast.idle()

    def _release(self, request: Request) -> None:
        """Take a request out of the running set and free its blocks."""
        del self._running[bisect_left(self._running, request.rank, key=by_rank)]
        self._prefixes.abandon(request)
        request.load = None
        self.pool.release(request.block_table, request.holder)
        request.block_table = []
        request.computed = 0
        self._preemption.release(request)

    def _queue_seconds(self, ahead: int) -> float:
        """Predict the time until a request behind `ahead` tokens of others starts; 0 while the speed is unknown."""
        return self._forecast.queue_seconds(ahead, self._running, full=not self._may_run_more)


def _policy_named(name: PolicyName, aging: float) -> QueuePolicy:
    """Return an empty policy. `aging`: seconds of waiting that outweigh one level of service."""
    return Fair(aging) if name == "fair" else WaitingLine(aging if name == "priority" else 0.0)
