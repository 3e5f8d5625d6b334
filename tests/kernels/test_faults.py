"""The schedules of the emulator: sound kernels do not depend on them, and planted faults show under some.

Each fault compiles one CUDA source anew, which takes a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels import library
from tests.kernels.faults import Fault, check, compile_with


def rms_norm(body: library.Library) -> torch.Tensor:
    """Of a block per row. What a fault may read or write beside the rows is still the tensors' memory."""
    torch.manual_seed(0)
    width, reach = 1160, 32 * 256
    memory = torch.full((3, reach), torch.nan)
    memory[:, :width] = torch.randn(3, width)
    (x, weight), out = (memory[:2, :width], memory[2, :width]), torch.full((2 * width + reach,), torch.nan)
    found = out[: 2 * width].view(2, width)
    body.rms_norm(found, x, weight, 1e-5)
    torch.testing.assert_close(found, torch.nn.functional.rms_norm(x, (width,), weight, 1e-5))
    assert out[2 * width :].isnan().all()
    return found


Case = tuple[str, list[str], Callable[[library.Library], torch.Tensor]]
CASES: dict[str, Case] = {"norm": ("norm", ["rms_norm"], rms_norm)}
"""By name: the source, its functions, and a run that checks its result."""

FAULTS = [
    ("norm", Fault("no barrier", "tile/reduce.cuh", "  __syncthreads();\n", "")),
    (
        "norm",
        Fault(
            "a barrier that some threads skip",
            "tile/reduce.cuh",
            "shared[warp_of_thread()] = value;\n  __syncthreads();",
            "shared[warp_of_thread()] = value, __syncthreads();",
            message="wait for others that never come",
        ),
    ),
    (
        "norm",
        Fault(
            "lanes left out",
            "tile/reduce.cuh",
            "distance = kLanes / 2; distance > 0",
            "distance = kLanes / 2; distance > 1",
        ),
    ),
    (
        "norm",
        Fault(
            "no tail", "norm.cuh", "      if (at >= p.width) continue;\n      const V weight", "      const V weight"
        ),
    ),
    (
        "norm",
        Fault(
            "shared memory too small",
            "norm.cuh",
            "kThreadsOfRow;\n  static constexpr size_t kSharedBytes = sizeof",
            "kThreadsOfRow;\n  static constexpr size_t kSharedBytes = 0 * sizeof",
            message="written beyond its end",
        ),
    ),
]


@pytest.mark.parametrize("name", CASES)
def test_a_sound_kernel_gives_the_same_bits_under_every_schedule(emulator: library.Library, name: str) -> None:
    check(CASES[name][2], emulator)


@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=[f"{name}: {fault.name}" for name, fault in FAULTS])
def test_a_planted_fault_is_caught(emulator: library.Library, name: str, fault: Fault, tmp_path: Path) -> None:
    source, functions, run = CASES[name]
    body = compile_with(fault, source, functions, tmp_path)
    with pytest.raises((AssertionError, RuntimeError), match=fault.message):
        check(run, body)
