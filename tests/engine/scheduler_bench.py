"""A scheduler driven step by step, with the ledger runner checking every KV cell that a request reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from engine.adapters.residency import BASE_ONLY, ResidencyConfig
from engine.cache.blocks import BLOCK_SIZE
from engine.plan import Row, StepPlan
from engine.request import Request
from engine.scheduling.config import SchedulerConfig
from engine.scheduling.scheduler import Scheduler
from engine.wire import PolicyName, SamplingParams
from tests.engine.ledger_runner import VOCABULARY, LedgerRunner, expected_output, model_info

_OF_REQUEST = {"adapter", "tenant", "weight", "service", "queue_timeout", "timeout"}


class Bench:
    """A scheduler with a ledger runner and a clock that ticks once per step."""

    policy: PolicyName = "fair"
    """Policy to use unless the configuration names one."""

    def __init__(
        self,
        blocks: int = 16,
        *,
        context: int = 256,
        adapters: ResidencyConfig = BASE_ONLY,
        host_blocks: int = 0,
        **config: Any,
    ) -> None:
        defaults = {"step_tokens": 32, "max_running": 8, "policy": self.policy}
        self.scheduler = Scheduler(
            SchedulerConfig(blocks=blocks, **defaults | config), model_info(context), adapters, host_blocks
        )
        self.runner = LedgerRunner(blocks)
        self.requests: dict[str, Request] = {}
        self.now = 0.0
        self.plan = StepPlan()
        self.draft: Callable[[Row], tuple[int, ...]] | None = None
        """Drafts the tokens after a row, if the test uses drafts."""

    def add(self, id: str, prompt: list[int] | int, max_tokens: int = 4, **fields: Any) -> Request:
        """Add a request; an integer prompt is that many tokens nobody else has."""
        if isinstance(prompt, int):
            prompt = [sum(map(ord, id)) % VOCABULARY, *(position % VOCABULARY for position in range(prompt - 1))]
        request = Request(
            id=id,
            prompt=prompt,
            arrival=fields.pop("arrival", self.now),
            chain_root=(fields.get("adapter") or "").encode(),
            **{name: fields.pop(name) for name in _OF_REQUEST & fields.keys()},
            sampling=SamplingParams(max_tokens=max_tokens, **({"ignore_eos": True} | fields)),
        )
        self.scheduler.add(request, self.now)
        self.requests[id] = request
        return request

    def step(self) -> dict[str, int]:
        """Run one step; returns how many tokens each request ran in it."""
        self.now += 1.0
        self.plan = self.scheduler.schedule(self.now)
        if self.draft is not None:
            granted = self.scheduler.reserve(self.plan, {row.request.id: 9 for row in self.plan.rows})
            rows = [row.with_draft(self.draft(row)[: granted.get(row.request.id, 0)]) for row in self.plan.rows]
            self.plan = StepPlan(rows, self.plan.preempted)
        self._before_execution()
        self._assert_only_private_blocks_are_written()
        self.scheduler.commit(self.plan, self.runner.execute(self.plan))
        self.scheduler.check_integrity()
        return {row.request.id: row.tokens for row in self.plan.rows}

    def _before_execution(self) -> None:
        """Do what the core does between scheduling and execution."""

    def _assert_only_private_blocks_are_written(self) -> None:
        users = Counter(block for request in self.scheduler.running for block in request.block_table)
        for row in self.plan.rows:
            last = row.start + row.tokens - 1
            for block in row.request.block_table[row.start // BLOCK_SIZE : last // BLOCK_SIZE + 1]:
                assert users[block] == 1, "a shared block is written"
                assert self.scheduler.pool._hashes[block] is None, "a published block is written"

    def run(self, steps: int = 10_000) -> None:
        """Step until nothing is left; fails if that takes more than `steps`."""
        while len(self.scheduler):
            assert steps > 0, "the scheduler does not finish its work"
            assert self.step(), "a step without rows although there is work"
            steps -= 1

    def assert_correct(self) -> None:
        """Check that every finished request has exactly the tokens it would have had alone."""
        for request in self.requests.values():
            assert request.output == expected_output(request.prompt, len(request.output), request.adapter)
