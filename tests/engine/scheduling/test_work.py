"""What an engine tells of its work: steps, rows, tokens, and how long first tokens took."""

from __future__ import annotations

from engine.core import EngineCore, SchedulerConfig
from engine.plan import Handle, StepPlan, TokenMasks
from engine.registration import TTFT_BOUNDS
from engine.wire import Generate, SamplingParams
from tests.engine.ledger_runner import LedgerRunner, model_info
from tests.engine.test_core import Clock, ask, drain


def make_core(clock: Clock) -> EngineCore:
    return EngineCore(LedgerRunner(16), model_info(), SchedulerConfig(16, step_tokens=32, max_running=8), clock=clock)


def test_steps_rows_and_tokens_are_counted() -> None:
    """Two prompts of three tokens and their answers of four: the first tokens come with the prompts' step."""
    core = make_core(Clock())
    core.add(ask("a", [1, 2, 3]))
    core.add(ask("b", [4, 5, 6]))
    drain(core)
    work = core.work.read()
    assert (work.steps, work.rows, work.tokens, work.outputs) == (4, 8, 2 * 3 + 2 * 3, 8)


def test_a_first_token_counts_by_the_time_since_its_request_came() -> None:
    clock = Clock()
    core = make_core(clock)
    core.add(ask("a", [1, 2, 3]))
    clock.now += 0.4
    core.step()
    core.add(ask("b", [4, 5, 6]))
    clock.now += 1000.0
    drain(core)
    counts = core.work.read().first_tokens
    assert counts[TTFT_BOUNDS.index(0.5)] == counts[-1] == 1
    assert sum(counts) == 2


def test_an_answer_that_began_elsewhere_has_no_first_token_here() -> None:
    core = make_core(Clock())
    core.add(Generate("a", [1, 2, 3, 4], SamplingParams(max_tokens=4, ignore_eos=True), resumed=1))
    drain(core)
    work = core.work.read()
    assert (work.outputs, sum(work.first_tokens)) == (3, 0)


def test_the_time_of_steps_is_counted_and_no_pause_between_them() -> None:
    clock = Clock()

    class Slow(LedgerRunner):
        def launch(self, plan: StepPlan, masks: TokenMasks | None = None) -> Handle:
            clock.now += 0.25
            return super().launch(plan, masks)

    core = EngineCore(Slow(16), model_info(), SchedulerConfig(16), clock=clock)
    core.add(ask("a", [1, 2, 3]))
    drain(core)
    clock.now += 60
    assert core.work.read().seconds == 1.0
