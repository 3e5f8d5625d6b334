"""A device that is lost ends the engine; a request that fails its own steps does not."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

import pytest

from engine.cache.blocks import BlockPool
from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.device_check import MOST_FAILED, DeviceCheck, DeviceLost
from engine.plan import Sampled, StepPlan
from engine.wire import Generate, SamplingParams
from tests.engine.adapters.ledger_bank import LedgerBank
from tests.engine.ledger_host import LedgerHost
from tests.engine.ledger_runner import LedgerRunner, expected_output, model_info
from tests.engine.peers import TIMEOUT

POISON = 13


class Mortal(LedgerRunner):
    """Fails steps with a prompt of `POISON`, and the next `failures` steps whatever they are."""

    failures = 0
    steps = 0

    def execute(self, plan: StepPlan) -> list[Sampled]:
        self.steps += 1
        if any(row.request.prompt[0] == POISON for row in plan.rows):
            raise ValueError("nobody can run this")
        if self.failures:
            self.failures -= 1
            raise RuntimeError("device failure")
        return super().execute(plan)


def make_core(runner: LedgerRunner, blocks: int = 8, host_blocks: int = 0) -> EngineCore:
    host = LedgerHost(runner, host_blocks) if host_blocks else None
    return EngineCore(runner, model_info(), SchedulerConfig(blocks), EngineFeatures(host=host))


def ask(core: EngineCore, id: str, prompt: list[int], max_tokens: int = 3) -> list[int]:
    """The tokens of a request, run to its end; none if it fails."""
    core.add(Generate(id, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)))
    outputs = []
    while not core.idle:
        outputs += core.step()
    core.check_integrity()
    if outputs[-1].finish == "error":
        return []
    return [token for output in outputs for token in output.tokens]


def test_a_poisonous_request_is_no_reason_to_end_however_often_it_comes() -> None:
    runner = Mortal(8)
    core = make_core(runner)
    for number in range(20):
        assert ask(core, f"bad {number}", [POISON, number]) == []
        assert ask(core, f"good {number}", [1, number]) == expected_output([1, number], 3)
    assert runner.steps == 20 * (2 + 3)  # each failed step is followed by one that looks at the device


def test_a_device_on_which_every_step_fails_ends_the_engine() -> None:
    runner = Mortal(8)
    core = make_core(runner)
    assert ask(core, "before", [1]) == expected_output([1], 3)
    runner.failures = 1_000_000
    with pytest.raises(DeviceLost, match=f"{MOST_FAILED} steps in a row failed"):
        ask(core, "a", [1, 2])
    assert runner.failures == 1_000_000 - MOST_FAILED


@pytest.mark.parametrize("failures", range(1, MOST_FAILED))
def test_a_device_that_recovers_counts_from_nothing_again(failures: int) -> None:
    runner = Mortal(8)
    core = make_core(runner)
    for number in range(5):
        runner.failures = failures
        assert ask(core, f"failed {number}", [1, 2]) == []
        assert ask(core, f"served {number}", [1, 2]) == expected_output([1, 2], 3)


def test_the_look_at_the_device_saves_the_prefix_whose_block_it_takes() -> None:
    """Of a cache without a free block, with host memory below."""
    runner = Mortal(3)
    core = make_core(runner, blocks=3, host_blocks=8)
    prompt = list(range(17, 17 + 32))
    first = ask(core, "a", prompt, max_tokens=9)
    runner.failures = 1
    assert ask(core, "failed", [1, 2]) == []
    assert ask(core, "again", prompt, max_tokens=9) == first
    core.check_integrity()
    core.close()


def test_an_adapter_that_cannot_be_copied_to_a_lost_device_ends_the_engine() -> None:
    """Where nobody asks for the base model, no step would ever tell."""

    class Lost(LedgerBank):
        def install(self, version: str, sectors: Sequence[int]) -> None:
            raise OSError("device")

        def execute(self, plan: StepPlan) -> list[Sampled]:
            raise RuntimeError("device failure")

    bank, woken = Lost(8), threading.Semaphore(0)
    core = EngineCore(bank, model_info(), SchedulerConfig(8), EngineFeatures(bank=bank))
    core.wake = woken.release
    core.add(Generate("a", [1], SamplingParams(), adapter="d" * 64))
    with contextlib.closing(core), pytest.raises(DeviceLost):
        while True:
            core.step()
            assert woken.acquire(timeout=TIMEOUT)


def test_without_a_block_nothing_is_asked_of_the_device() -> None:
    runner, pool = Mortal(1), BlockPool(1)
    pool.allocate(1)
    DeviceCheck(runner, pool, lambda: None).suspect()
    assert runner.steps == 0
