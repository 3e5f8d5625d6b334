"""What the CUDA kernels take: how ptxas is read, what fits on a GPU, and that no register is spilled."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from kernels import resources
from kernels.build import BUILD, ROOT
from kernels.resources import Kernel

NAME = "_ZN10roundhouse4cuda6kernelINS0_15DecodeAttentionI13__nv_fp8_e4m3Li64EEELi128ELm30208EEEvNT_6ParamsE"
LOG = f"""ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{NAME}' for 'sm_80'
ptxas info    : Function properties for {NAME}
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 138 registers, used 1 barriers, 64 bytes smem, 528 bytes cmem[0]
ptxas info    : Compile time = 241.842 ms
ptxas info    : Compiling entry function '{NAME}' for 'sm_90a'
ptxas info    : Function properties for {NAME}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 96 registers
"""


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="c++filt is missing; install binutils")
def test_what_ptxas_says_is_read() -> None:
    first, second = resources.parse(LOG)
    assert first == Kernel("DecodeAttention<fp8, 64>", "sm_80", 128, 138, 30208 + 64, 16, 20)
    assert (second.architecture, second.registers, second.spilled_bytes) == ("sm_90a", 96, 0)
    assert "| DecodeAttention<fp8, 64> | sm_90a | 128 | 96 | 29.5 KiB | 5 | 31% |" in resources.markdown([second])


def test_what_ptxas_did_not_say_before_is_an_error() -> None:
    with pytest.raises(ValueError, match="registers of nothing"):
        resources.parse("ptxas info    : Used 96 registers\n")
    assert resources.parse("ptxas info    : 0 bytes gmem\n") == []


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks"),
    [
        (1024, 32, 0, 2),  # warps
        (1024, 64, 0, 1),  # registers: 32 warps of 2,048
        (32, 16, 0, 32),  # blocks
        (128, 255, 0, 2),  # a warp has 8,192 registers, two of them a quarter's
        (128, 33, 0, 12),  # 33 registers count as 40
        (128, 32, 80 * 1024, 2),  # shared memory, with a kilobyte more for each block
        (128, 32, 163 * 1024, 1),
    ],
)
def test_how_many_blocks_there_is_room_for(threads: int, registers: int, shared_bytes: int, blocks: int) -> None:
    kernel = Kernel("", "sm_80", threads, registers, shared_bytes, 0, 0)
    assert kernel.blocks == blocks
    assert kernel.occupancy == blocks * threads / 2048


def test_no_register_of_any_kernel_is_spilled() -> None:
    """Of the library that `python -m kernels.build` has made, after compiling what has changed since."""
    sources = {path.name for path in (ROOT / "kernels" / "csrc" / "cuda").glob("*.cu")}
    cache = BUILD / "CMakeCache.txt"
    if not cache.exists() or "ROUNDHOUSE_CUDA:STRING=OFF" in cache.read_text() or not resources.logs(BUILD):
        pytest.skip("the CUDA library has not been built: install nvcc, then run `python -m kernels.build`")
    command = ["cmake", "--build", str(BUILD), "--target", "roundhouse_cuda", "--parallel", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    kernels = resources.built(BUILD)
    assert sources <= set(resources.logs(BUILD))
    assert {kernel.architecture for kernel in kernels} == set(resources.MULTIPROCESSORS)
    assert len(kernels) >= 2 * len(sources)
    assert [kernel for kernel in kernels if kernel.spilled_bytes or not kernel.blocks] == []
