"""The tier in host memory in a whole engine: loads beside the steps, failures, cancellation and what the load tells."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from engine.cache.host_tier import Save
from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.host_memory import host_memory
from engine.wire import Generate, Output, SamplingParams
from tests.engine.ledger_host import LedgerHost
from tests.engine.ledger_runner import LedgerRunner, expected_output, model_info

TIMEOUT = 30
PROMPT = list(range(50))
"""Three blocks and two tokens."""


class GatedHost(LedgerHost):
    """`gate` holds loads up; `broken` makes them fail."""

    gate: threading.Semaphore | None = None
    broken = False

    def begin_load(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> Callable[[], None]:
        finish = super().begin_load(host_blocks, blocks)

        def load() -> None:
            if self.gate is not None:
                assert self.gate.acquire(timeout=TIMEOUT)
            if self.broken:
                raise OSError("host memory")
            finish()

        return load


class Hosted:
    """A core and whoever hosts it: sleeps when there is nothing to do."""

    def __init__(self, blocks: int = 6, host_blocks: int = 12, **config: Any) -> None:
        runner = LedgerRunner(blocks)
        self.host = GatedHost(runner, host_blocks)
        scheduler = SchedulerConfig(blocks, **{"step_tokens": 64, "max_running": 8, "host_load_tokens": 16} | config)
        self.core = EngineCore(runner, model_info(), scheduler, EngineFeatures(host=self.host))
        self._woken = threading.Semaphore(0)
        self.core.wake = self._woken.release

    def ask(self, id: str, prompt: list[int], max_tokens: int = 4) -> None:
        self.core.add(Generate(id, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)))

    def step(self) -> list[Output]:
        if self.core.stalled:
            assert self._woken.acquire(timeout=TIMEOUT), "a stalled core is never woken"
        return self.core.step()

    def drain(self) -> dict[str, list[int]]:
        tokens: dict[str, list[int]] = {}
        while not self.core.idle:
            for output in self.step():
                tokens.setdefault(output.id, []).extend(output.tokens)
        self.core.check_integrity()
        load = self.core.load()
        assert load.free_blocks + load.cached_blocks == load.total_blocks
        assert load.host_free_blocks + load.host_cached_blocks == load.host_blocks
        return tokens

    def evict(self, prompt: list[int] = PROMPT) -> None:
        """Have a prompt in host memory and not on the device."""
        self.ask("before", prompt)
        self.drain()
        self.ask("other", [1] * 90)
        self.drain()


@pytest.fixture
def hosted() -> Iterator[Hosted]:
    hosted = Hosted()
    with contextlib.closing(hosted.core):
        yield hosted


def test_a_prefix_comes_back_from_host_memory(hosted: Hosted) -> None:
    hosted.evict()
    hosted.ask("again", PROMPT)
    assert hosted.drain()["again"] == expected_output(PROMPT, 4)
    load = hosted.core.load()
    assert (load.host_blocks, load.host_hit_tokens, load.prefix_hit_tokens) == (12, 48, 48)
    assert load.host_loaded_bytes == 3 * hosted.host.block_bytes
    assert load.host_saved_bytes >= 3 * hosted.host.block_bytes


def test_who_follows_the_blocks_is_told_that_an_evicted_one_is_still_held(hosted: Hosted) -> None:
    """Until host memory has no room for it either."""
    hosted.ask("before", PROMPT)
    hosted.drain()
    prefix = set(hosted.core.held_blocks())
    hosted.core.follow_blocks(True)
    hosted.ask("other", [1] * 90)
    hosted.drain()
    assert not any(key in prefix for key in hosted.core.take_block_changes())
    assert prefix <= set(hosted.core.held_blocks())
    for token in range(2, 6):
        hosted.ask("more", [token] * 90)
        hosted.drain()
    changes = hosted.core.take_block_changes()
    assert [changes[key] for key in prefix] == [False] * 3


def test_usage_counts_what_was_loaded_as_cached(hosted: Hosted) -> None:
    hosted.evict()
    hosted.ask("again", PROMPT, 1)
    outputs: list[Output] = []
    while not hosted.core.idle:
        outputs += hosted.step()
    assert outputs[-1].usage is not None
    assert outputs[-1].usage.cached_tokens == 48


def test_no_step_waits_for_a_load(hosted: Hosted) -> None:
    hosted.evict()
    hosted.host.gate = threading.Semaphore(0)
    hosted.ask("again", PROMPT)
    hosted.ask("busy", [3], 8)
    gained = 0
    while gained < 8:
        assert not hosted.core.stalled
        gained += sum(output.id == "busy" for output in hosted.step())
    hosted.step()
    assert hosted.core.stalled
    hosted.host.gate.release()
    assert hosted.drain()["again"] == expected_output(PROMPT, 4)


def test_a_request_cancelled_during_its_load_leaves_nothing_behind(hosted: Hosted) -> None:
    hosted.evict()
    hosted.host.gate = threading.Semaphore(0)
    hosted.ask("again", PROMPT)
    hosted.step()
    hosted.core.cancel("again")
    hosted.core.check_integrity()
    assert not hosted.core.idle
    hosted.host.gate.release()
    hosted.drain()
    assert hosted.core.load().running == 0


def test_a_load_that_fails_is_computed_instead(hosted: Hosted, caplog: pytest.LogCaptureFixture) -> None:
    hosted.evict()
    hosted.host.broken = True
    hosted.ask("again", PROMPT)
    assert hosted.drain()["again"] == expected_output(PROMPT, 4)
    assert "KV could not be loaded from host memory" in caplog.text


def test_a_new_request_runs_while_all_others_wait_for_loads(hosted: Hosted) -> None:
    hosted.evict()
    hosted.host.gate = threading.Semaphore(0)
    hosted.ask("again", PROMPT)
    hosted.step()
    assert hosted.core.stalled
    hosted.ask("new", [5], 1)
    assert [output.id for output in hosted.core.step()] == ["new"]
    hosted.host.gate.release()
    hosted.drain()


def test_without_host_memory_the_load_tells_of_none() -> None:
    core = EngineCore(LedgerRunner(4), model_info(), SchedulerConfig(4, max_running=2))
    load = core.load()
    assert (load.host_blocks, load.host_hit_tokens, load.host_saved_bytes) == (0, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_go_out_and_come_back_to_the_bit(dtype: torch.dtype, device: str) -> None:
    sectors = torch.randn(6, 40, device=device).to(dtype)
    before = sectors.clone()
    memory = host_memory(sectors, 4 * 40 * dtype.itemsize)
    assert (memory.blocks, memory.block_bytes) == (4, 40 * dtype.itemsize)
    memory.save([Save(1, 3), Save(4, 0), Save(5, 3)])
    sectors.zero_()
    memory.begin_load([3, 0], [2, 0])()
    assert torch.equal(sectors[2], before[5])
    assert torch.equal(sectors[0], before[4])
    assert not np.any(sectors[[1, 3, 4, 5]].float().cpu().numpy())


def test_copies_keep_their_order_among_steps_that_are_still_running(device: str) -> None:
    """A GPU is still at the multiplication when the copies are asked for and the block is written again."""
    sectors = torch.zeros(2, 1 << 16, device=device)
    memory = host_memory(sectors, 3 * 4 << 16)
    matrix = torch.eye(256 if device == "cpu" else 4096, device=device)
    for value in range(1, 12):
        matrix = matrix @ matrix
        sectors[0] = value * matrix[0, 0]
        memory.save([Save(0, value % 3)])
        sectors[0] = -1
        memory.begin_load([value % 3], [1])()
        assert torch.all(sectors[1] == value)


def test_a_size_that_holds_no_block_is_refused() -> None:
    with pytest.raises(ValueError, match="100 bytes hold no block of 160"):
        host_memory(torch.zeros(2, 40), 100)


def test_more_memory_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot be had .*give it fewer"):
        host_memory(torch.zeros(2, 40), 1 << 60)
