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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from engine.kv import BLOCK_SIZE, BlockPool, block_hash
from engine.plan import Row, Sampled, StepPlan
from engine.request import Request, RequestError, State
from engine.wire import FinishReason, ModelInfo, ServiceClass

_rank = attrgetter("rank")
_LEVELS: dict[ServiceClass, int] = {"premium": -1, "standard": 0, "batch": 1}


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes of one engine.

    `blocks`: KV blocks; `step_tokens`: most tokens of one step; `max_running`: most requests in one step;
    `max_waiting`: most requests beyond those; `aging`: seconds of waiting that outweigh one level of service, so that
    a low class delays a request but never starves it.
    """

    blocks: int
    step_tokens: int = 2048
    max_running: int = 64
    max_waiting: int = 1024
    aging: float = 30.0

    def __post_init__(self) -> None:
        if self.max_running < 1 or self.max_waiting < 1 or self.aging < 0:
            raise ValueError("max_running and max_waiting must be positive, aging must not be negative")
        if self.step_tokens < self.max_running:
            # Otherwise decodes alone could fill every step and a prompt would never start.
            raise ValueError(
                f"step_tokens ({self.step_tokens}) must be at least max_running ({self.max_running}): raise the one "
                "or lower the other"
            )

    @property
    def max_requests(self) -> int:
        """Most live requests."""
        return self.max_running + self.max_waiting


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
        self._waiting: list[Request] = []
        """Both in line order."""
        self._arrivals = 0
        self._waiting_tokens = 0
        self._computing: dict[bytes, Request] = {}
        """Prefixes that a running request will have computed soon, by the hash of their last block."""

    def __len__(self) -> int:
        """Live requests."""
        return len(self._requests)

    @property
    def running(self) -> Sequence[Request]:
        return self._running

    @property
    def waiting(self) -> Sequence[Request]:
        return self._waiting

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
        self._arrivals += 1
        request.rank = (request.arrival + _LEVELS[request.service] * self.config.aging, self._arrivals)
        self._requests[request.id] = request
        self._enqueue(request)

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

    def commit(self, plan: StepPlan, sampled: Iterable[Sampled]) -> list[tuple[Request, Sampled]]:
        """Account for a step that has run: tokens appended, full blocks published, finished requests freed.

        Returns what each request gained, in the plan's order, without those that were cancelled meanwhile.
        """
        gained = []
        for row, result in zip(plan.rows, sampled, strict=True):
            request = row.request
            if request.state is not State.RUNNING:
                continue
            self._publish(request, row.start + row.count)
            if result.tokens:
                request.output += result.tokens
                self.output_tokens += len(result.tokens)
                reason = self._stop_reason(request)
                if reason is not None:
                    self._finish(request, reason)
            gained.append((request, result))
        return gained

    def check_integrity(self) -> None:
        """Compare all books with each other.

        Raises:
            RuntimeError: they differ; the message says where.
        """
        self.pool.check_integrity(request.block_table for request in self._running)
        if len(self._running) + len(self._waiting) != len(self._requests):
            raise RuntimeError("a request is lost between queue and running set")
        if self._waiting_tokens != sum(request.length for request in self._waiting):
            raise RuntimeError("waiting tokens are counted wrongly")
        if any(request.block_table or request.computed for request in self._waiting):
            raise RuntimeError("a waiting request holds KV blocks")
        if not {request.id for request in self._computing.values()} <= {request.id for request in self._running}:
            raise RuntimeError("a request that does not run is said to compute a prefix")

    def _admit(self, counts: dict[str, int], budget: int, now: float) -> None:
        """Move requests from the queue into this step while budget, blocks and rows last."""
        index = 0
        while index < len(self._waiting) and budget > 0 and len(self._running) < self.config.max_running:
            request = self._waiting[index]
            hits = self._match(request)
            if self._prefix_is_underway(request, len(hits)):
                index += 1
                if index == self.config.max_running:  # a bound on the work of one step
                    return
                continue
            blocks = _blocks(request.length) - len(hits)
            if blocks + self.pool.idle(hits) + len(self._running) > self.pool.available:
                return
            del self._waiting[index]
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
        insort(self._running, request, key=_rank)
        for digest in request.block_hashes[len(hits) :]:
            self._computing.setdefault(digest, request)

    def _make_room(self, request: Request, count: int, preempted: list[Request]) -> bool:
        """Extend the block table over the next `count` tokens, at the cost of requests further behind if need be.

        Only a decoding request can be in need (a prompt gets all its blocks at admission), and decodes are scheduled
        first, in line order: so a victim is never part of the step yet.
        """
        missing = _blocks(request.computed + count) - len(request.block_table)
        while missing > self.pool.available:
            behind = self._running[bisect_left(self._running, request.rank, key=_rank) + 1 :]
            if not behind:
                return False
            victim = min(behind, key=lambda other: (other.computed, -other.rank[1]))
            self._leave(victim, State.WAITING)
            self._enqueue(victim)
            preempted.append(victim)
            victim.preemptions += 1
            self.preemptions += 1
        if missing > 0:
            request.block_table += self.pool.allocate(missing)
        return True

    def _match(self, request: Request) -> list[int]:
        """Cached blocks that `request` may use. Its last known token always runs: its logits are wanted."""
        if request.sampling.prompt_logprobs is not None:
            return []
        self._extend_hashes(request, request.length // BLOCK_SIZE)
        return self.pool.match(request.block_hashes[: (request.length - 1) // BLOCK_SIZE])

    def _prefix_is_underway(self, request: Request, hits: int) -> bool:
        """Whether a request further ahead is computing at least half of what this one still needs.

        Waiting for it costs a step or two; computing the same prefix twice costs as much and delays the other one.
        """
        if request.sampling.prompt_logprobs is not None:
            return False
        shared = 0
        for digest in request.block_hashes[hits : (request.length - 1) // BLOCK_SIZE]:
            owner = self._computing.get(digest)
            if owner is None or owner.rank > request.rank:
                break
            shared += BLOCK_SIZE
        return shared > 0 and 2 * shared >= request.length - hits * BLOCK_SIZE

    def _extend_hashes(self, request: Request, blocks: int) -> None:
        hashes = request.block_hashes
        for index in range(len(hashes), blocks):
            parent = hashes[-1] if hashes else request.chain_root
            hashes.append(block_hash(parent, request.tokens(index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE)))

    def _publish(self, request: Request, computed: int) -> None:
        """Tokens `[0, computed)` are in the cache now: register the blocks that became full."""
        full = range(request.computed // BLOCK_SIZE, computed // BLOCK_SIZE)
        request.computed = computed
        self._extend_hashes(request, full.stop)
        for index in full:
            digest = request.block_hashes[index]
            self.pool.register(request.block_table[index], digest)
            if self._computing.get(digest) is request:
                del self._computing[digest]

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

    def _enqueue(self, request: Request) -> None:
        insort(self._waiting, request, key=_rank)
        self._waiting_tokens += request.length

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.finish = reason
        del self._requests[request.id]
        self._leave(request, State.FINISHED)

    def _leave(self, request: Request, state: State) -> None:
        """Take a request out of its list; one that ran gives its blocks back."""
        line = self._running if request.state is State.RUNNING else self._waiting
        del line[bisect_left(line, request.rank, key=_rank)]
        if request.state is State.RUNNING:
            for digest in request.block_hashes[request.computed // BLOCK_SIZE :]:
                if self._computing.get(digest) is request:
                    del self._computing[digest]
            self.pool.release(request.block_table)
            request.block_table = []
            request.computed = 0
        else:
            self._waiting_tokens -= request.length
        request.move_to(state)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)
