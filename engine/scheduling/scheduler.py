"""Decides what each step runs. Pure: state and `now` in, a `StepPlan` out; no clock, no torch, no I/O.

There is no prefill phase and no decode phase. A step has one token budget; requests that decode take one token each,
then prompts take what is left, in chunks if they must, so that a long prompt never stops the others (the scheme is
vLLM's V1 scheduler). Requests stand in one line, by arrival and service class, and keep their place for life:

* Admission is in line order. A request enters when blocks for all its known tokens are available plus one for each
  request already running; a later one never overtakes it because it is smaller.
* When blocks run out, the request in need preempts one *behind* it, the cheapest to recompute. If there is none, it
  waits with its KV intact. So the first in line always progresses, and there is no livelock.
* A preempted request runs its tokens again later; its full blocks stay in the prefix cache as long as they can.

Steps run one after another, so that blocks freed by `commit` are reusable at once: nothing launched touches them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence

from engine.kv import BLOCK_SIZE, BlockPool
from engine.plan import Row, Sampled, StepPlan
from engine.request import Request, RequestError, State
from engine.scheduling.config import SchedulerConfig
from engine.scheduling.policy import Line, Policy, by_rank
from engine.scheduling.prefixes import Prefixes
from engine.wire import FinishReason, ModelInfo


class Scheduler:
    """Queue, running set and KV bookkeeping of one engine."""

    def __init__(self, config: SchedulerConfig, model: ModelInfo) -> None:
        self.config = config
        self.pool = BlockPool(config.blocks)
        self.context = min(model.context, config.blocks * BLOCK_SIZE)
        """Most tokens of one request: it alone always fits into the cache."""
        self.prefix_hit_tokens = self.prompt_tokens = self.output_tokens = self.preemptions = 0
        """Totals since the start."""
        self._model = model
        self._requests: dict[str, Request] = {}
        self._running: list[Request] = []
        """In line order."""
        self._policy: Policy = Line(config.aging)
        """Holds the waiting requests."""
        self._waiting_tokens = 0
        self._prefixes = Prefixes(self.pool)

    def __len__(self) -> int:
        """Live requests."""
        return len(self._requests)

    @property
    def running(self) -> Sequence[Request]:
        return self._running

    @property
    def waiting(self) -> Policy:
        """Waiting requests: their number, and an iterator over them."""
        return self._policy

    @property
    def uncomputed_tokens(self) -> int:
        """Tokens that still have to be run before every known request decodes."""
        prefilling = sum(request.uncomputed for request in self._running if request.uncomputed > 1)
        return self._waiting_tokens + prefilling

    def add(self, request: Request) -> None:
        """Put a request into the line. Its prompt must be shorter than `context`.

        Raises:
            RequestError: its id is taken or the engine is full.
        """
        if len(request.prompt) >= self.context:
            raise ValueError(f"request {request.id}: a prompt of {len(request.prompt)} tokens can never be served")
        if request.id in self._requests:
            raise RequestError(f"id: {request.id!r} is a live request; choose another id")
        if len(self._requests) >= self.config.max_requests:
            raise RequestError(f"the engine is full ({len(self._requests)} requests); try again", "overloaded")
        self._requests[request.id] = request
        self._policy.join(request)
        self._waiting_tokens += request.length

    def cancel(self, id: str, reason: FinishReason = "cancelled") -> Request | None:
        """End a request wherever it is and free its blocks; None if there is no such request."""
        request = self._requests.get(id)
        if request is not None:
            self._finish(request, reason)
        return request

    def schedule(self, now: float) -> StepPlan:
        """Choose the next step's rows and give them the blocks they write to."""
        budget = self.config.step_tokens
        counts: dict[str, int] = {}
        preempted: list[Request] = []
        decoding = [request for request in self._running if request.uncomputed == 1]
        prefilling = [request for request in self._running if request.uncomputed > 1]
        for request in decoding + prefilling:
            if request.state is not State.RUNNING:  # it has become a victim of this very loop
                continue
            count = min(request.uncomputed, budget)
            if count == 0:
                break
            if self._make_room(request, count, preempted):
                counts[request.id] = count
                budget -= count
        self._admit(counts, budget, now)
        rows = [self._row(self._requests[id], count) for id, count in counts.items()]
        rows.sort(key=lambda row: row.count > 1)
        return StepPlan(rows, preempted)

    def reserve(self, plan: StepPlan, depths: Mapping[str, int]) -> dict[str, int]:
        """Give rows that decode blocks for drafts of up to `depths` tokens; how many tokens each may draft.

        Drafts get what a step leaves: of its token budget, of the context and of `max_tokens`. They never cost another
        request its blocks, only cached prefixes, and those a few steps early: the answer will need the block anyway.
        """
        budget = self.config.step_tokens - plan.tokens
        granted = {}
        for row in plan.rows:
            request = row.request
            depth = min(
                depths.get(request.id, 0),
                budget,
                request.sampling.max_tokens - len(request.output) - 1,
                self.context - request.length - 1,
                (len(request.block_table) + self.pool.available) * BLOCK_SIZE - request.length,
            )
            if not row.sample or depth < 1:
                continue
            missing = _blocks(request.length + depth) - len(request.block_table)
            if missing > 0:
                request.block_table += self.pool.allocate(missing)
            granted[request.id] = depth
            budget -= depth
        return granted

    def commit(self, plan: StepPlan, sampled: Iterable[Sampled]) -> list[tuple[Request, Sampled]]:
        """Account for a step that has run: tokens appended, full blocks published, finished requests freed.

        Returns what each request gained, in the plan's order, without those that were cancelled meanwhile.
        """
        gained = []
        for row, result in zip(plan.rows, sampled, strict=True):
            request = row.request
            if request.state is not State.RUNNING:
                continue
            reason = None
            for said, token in enumerate(result.tokens, 1):
                request.output.append(token)
                reason = self._stop_reason(request)
                if reason is not None:
                    result = result.first(said)
                    break
            self.output_tokens += len(result.tokens)
            # All of these but the last have run: they are the confirmed part of the draft.
            self._prefixes.publish(request, row.start + row.count + max(len(result.tokens) - 1, 0))
            if reason is not None:
                self._finish(request, reason)
            else:
                self._give_back(request)
            gained.append((request, result))
        return gained

    def check_integrity(self) -> None:
        """Compare all books with each other.

        Raises:
            RuntimeError: they differ; the message says where.
        """
        self.pool.check_integrity(request.block_table for request in self._running)
        self._prefixes.check_integrity(self._running)
        if len(self._running) + len(self._policy) != len(self._requests):
            raise RuntimeError("a request is lost between queue and running set")
        if self._waiting_tokens != sum(request.length for request in self._policy):
            raise RuntimeError("waiting tokens are counted wrongly")
        if any(request.block_table or request.computed for request in self._policy):
            raise RuntimeError("a waiting request holds KV blocks")

    def _admit(self, counts: dict[str, int], budget: int, now: float) -> None:
        """Move requests from the queue into this step while budget, blocks and rows last."""
        policy = self._policy
        policy.open(now)
        passed_over = 0
        while budget > 0 and len(self._running) < self.config.max_running:
            request = policy.first()
            if request is None:
                return
            hits = self._prefixes.match(request)
            if self._prefixes.underway(request, len(hits)):
                policy.pass_over(request)
                passed_over += 1
                if passed_over == self.config.max_running:  # a bound on the work of one step
                    return
                continue
            blocks = _blocks(request.length) - len(hits)
            if blocks + self.pool.idle(hits) + len(self._running) > self.pool.available:
                return
            policy.admit(request)
            self._start(request, hits, blocks, now)
            counts[request.id] = min(request.uncomputed, budget)
            budget -= counts[request.id]

    def _start(self, request: Request, hits: list[int], blocks: int, now: float) -> None:
        self._waiting_tokens -= request.length
        request.move_to(State.RUNNING)
        self.pool.share(hits)
        request.block_table = hits + self.pool.allocate(blocks)
        request.computed = len(hits) * BLOCK_SIZE
        if request.first_scheduled is None:
            request.first_scheduled = now
            request.cached = request.computed
            self.prefix_hit_tokens += request.cached
            self.prompt_tokens += len(request.prompt)
        insort(self._running, request, key=by_rank)
        self._prefixes.begin(request)

    def _make_room(self, request: Request, count: int, preempted: list[Request]) -> bool:
        """Extend the block table over the next `count` tokens, at the cost of requests further behind if need be.

        Only a decoding request can be in need (a prompt gets all its blocks at admission), and decodes are scheduled
        first, in line order: so a victim is never part of the step yet.
        """
        missing = _blocks(request.computed + count) - len(request.block_table)
        while missing > self.pool.available:
            behind = self._running[bisect_left(self._running, request.rank, key=by_rank) + 1 :]
            if not behind:
                return False
            victim = min(behind, key=lambda other: (other.computed, -other.rank[1]))
            self._leave(victim, State.WAITING)
            self._policy.rejoin(victim)
            self._waiting_tokens += victim.length
            preempted.append(victim)
            victim.preemptions += 1
            self.preemptions += 1
        if missing > 0:
            request.block_table += self.pool.allocate(missing)
        return True

    def _give_back(self, request: Request) -> None:
        """Return the blocks behind the next token to run, which were for a draft that was not confirmed."""
        kept = _blocks(request.length)
        if len(request.block_table) > kept:
            self.pool.release(request.block_table[kept:])
            del request.block_table[kept:]

    def _stop_reason(self, request: Request) -> FinishReason | None:
        sampling, token = request.sampling, request.output[-1]
        ends = token in sampling.stop_token_ids or (not sampling.ignore_eos and token in self._model.eos_token_ids)
        if ends and len(request.output) > sampling.min_tokens:
            return "stop"
        if len(request.output) >= sampling.max_tokens or request.length >= self.context:
            return "length"
        return None

    def _row(self, request: Request, count: int) -> Row:
        return Row(request, request.computed, count, sample=count == request.uncomputed)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.finish = reason
        del self._requests[request.id]
        self._leave(request, State.FINISHED)

    def _leave(self, request: Request, state: State) -> None:
        """Take a request out of the running set, whose blocks it gives back, or out of the queue."""
        if request.state is State.RUNNING:
            del self._running[bisect_left(self._running, request.rank, key=by_rank)]
            self._prefixes.abandon(request)
            self.pool.release(request.block_table)
            request.block_table = []
            request.computed = 0
        else:
            self._policy.leave(request)
            self._waiting_tokens -= request.length
        request.move_to(state)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)
