"""Steps that are timed: what each is said to compute is what the scheduler planned."""

from __future__ import annotations

from itertools import count

import pytest

from engine.core import EngineCore
from engine.plan import Handle, StepPlan, TokenMasks
from engine.scheduling.config import SchedulerConfig
from engine.scheduling.work import WorkTally
from engine.server.timing import StepTimer
from engine.step_times import StepWork
from tests.engine.ledger_runner import LedgerRunner, model_info

CONFIG = SchedulerConfig(blocks=600, step_tokens=128, max_running=8)


class WatchedRunner(LedgerRunner):
    work = StepWork(0)

    def launch(self, plan: StepPlan, masks: TokenMasks | None = None) -> Handle:
        self.work = plan.work
        return super().launch(plan, masks)


def core_of(runner: LedgerRunner) -> EngineCore:
    return EngineCore(runner, model_info(context=4096), CONFIG)


def test_each_step_computes_what_is_said_of_it() -> None:
    runner = WatchedRunner(CONFIG.blocks)
    core = core_of(runner)
    ticks = count()
    steps, loaded = [], []
    for step in StepTimer(core, lambda: next(ticks)).run(500):
        assert step.work == runner.work
        work = step.work
        if step.under_load:
            assert step.seconds == 1
            loaded.append(work)
            continue
        later = not work.read and work.pairs > work.tokens * (work.tokens + 1) // 2
        assert step.seconds == (2 if work.prompts and not later else 1)  # prompts arrive before their first step
        steps.append(work)
    core.check_integrity()
    assert core.idle
    assert type(core.work) is WorkTally
    assert len(loaded) == pytest.approx(sum(2 if work.prompts else 1 for work in steps), rel=0.2)
    assert {work.tokens for work in steps if not work.read} == {2, 4, 8, 16, 32, 64, 128}
    assert {work.tokens for work in steps if not work.prompts} == {1, 2, 4, 8}
    mixed = {(work.tokens, work.read and work.sampled - work.prompts, work.prompts) for work in steps if work.read}
    assert {(20, 4, 1), (68, 4, 1), (68, 4, 4), (18, 2, 1), (66, 2, 4), (17, 1, 1), (65, 1, 4)} <= mixed
    assert max(work.pairs for work in steps) > 3 * 128**2
    assert max(work.read for work in steps) > 8 * 512


def test_one_round_runs_however_little_time_there_is() -> None:
    ticks = count()
    timed = StepTimer(core_of(LedgerRunner(CONFIG.blocks)), lambda: next(ticks)).engine(1, threads=2)
    assert {step.work.tokens for step in timed.steps if not (step.work.prompts or step.under_load)} == {1, 2, 4, 8}
    assert any(step.under_load for step in timed.steps)
    assert (timed.model, timed.threads, timed.kv_tokens, timed.max_running) == ("ledger", 2, 9600, 8)
