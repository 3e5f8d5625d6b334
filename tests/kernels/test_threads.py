"""The threads that share an op's work: the same result with any number, whoever else computes, and in a fork."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import kernels
from kernels import library

pytestmark = pytest.mark.usefixtures("isa")
_ROWS, _WIDTH = 300, 512
"""Enough bytes for eight threads."""


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores their number."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def normalise(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(_ROWS, _WIDTH, generator=generator)
    return kernels.rms_norm(x, torch.ones(_WIDTH), 1e-6)


def test_the_number_of_threads_changes_no_bit(threads: None) -> None:
    torch.set_num_threads(1)
    alone = normalise(0)
    for count in (2, 3, 8, 2, 1, 5):
        torch.set_num_threads(count)
        for _ in range(20):
            assert torch.equal(normalise(0), alone)


def test_work_behind_work_is_done_in_full(threads: None) -> None:
    """Thousands of calls with hardly anything in between, and some after everybody has gone to sleep."""
    torch.set_num_threads(4)
    x = torch.arange(_ROWS, dtype=torch.float32)[:, None].expand(_ROWS, _WIDTH).contiguous() + 1
    weight = torch.ones(_WIDTH)
    pause = threading.Event()
    for call in range(3000):
        out = kernels.rms_norm(x, weight, 0.0)
        assert float((out - 1).abs().max()) < 1e-5
        if call % 500 == 0:
            pause.wait(0.002)


def test_callers_at_once_do_not_disturb_each_other(threads: None) -> None:
    torch.set_num_threads(2)
    expected = [normalise(seed) for seed in range(4)]
    wrong: list[int] = []

    def call(seed: int) -> None:
        wrong.extend(seed for _ in range(200) if not torch.equal(normalise(seed), expected[seed]))

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_a_fork_has_threads_of_its_own_and_the_process_ends(isa: str) -> None:
    program = (
        "import os, torch, kernels\n"
        "torch.set_num_threads(2)\n"
        "x = torch.ones(4096, 64)  # torch itself cannot use threads in a fork: numpy adds up\n"
        "def run(): return kernels.rms_norm(x, torch.ones(64), 1e-6).numpy().sum()\n"
        "before = run()\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if run() == before else 1)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "raise SystemExit(status or int(run() != before))\n"
    )
    environment = {library.VARIABLE: isa, "PYTHONPATH": str(Path(kernels.__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
