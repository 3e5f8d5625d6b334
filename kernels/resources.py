"""What the CUDA kernels take of a multiprocessor: `python -m kernels.build --resources`.

The build keeps what ptxas says of every kernel (see kernels/csrc/ptxas_log.py); threads and dynamic shared memory are
in the kernels' names.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """Limits of a multiprocessor of one generation; from the CUDA C++ Programming Guide, "Compute Capabilities"."""

    shared_bytes: int
    registers: int = 64 * 1024
    warps: int = 64
    blocks: int = 32
    partitions: int = 4
    """Parts of a multiprocessor, each with as many of its registers."""
    granularity: int = 256
    """Registers are given to a warp in multiples of this."""
    reserved_bytes: int = 1024
    """Shared memory that a block takes beyond what it asks for."""


MULTIPROCESSORS = {"sm_80": Multiprocessor(164 * 1024), "sm_90a": Multiprocessor(228 * 1024)}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel on one generation."""

    name: str
    architecture: str
    threads: int
    registers: int
    """Registers of a thread."""
    shared_bytes: int
    """Shared memory of a block."""
    stack_bytes: int
    """Stack of a thread, without spilled registers."""
    spilled_bytes: int
    """Bytes of spilled registers that a thread's code stores and loads."""

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor has room for at once."""
        has = MULTIPROCESSORS[self.architecture]
        warps = -(-self.threads // 32)
        of_warp = -(-max(self.registers, 1) * 32 // has.granularity) * has.granularity
        most_warps = has.registers // has.partitions // of_warp * has.partitions
        by_memory = has.shared_bytes // (self.shared_bytes + has.reserved_bytes)
        return min(has.blocks, has.warps // warps, most_warps // warps, by_memory)

    @property
    def occupancy(self) -> float:
        """Share of a multiprocessor's warps that can be there at once."""
        return self.blocks * -(-self.threads // 32) / MULTIPROCESSORS[self.architecture].warps


_ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_STATIC = re.compile(r"(\d+) bytes smem")
_NAME = re.compile(r"kernel<(.+), (\d+), (\d+)ul>\(")


def parse(log: str) -> list[Kernel]:
    """The kernels in a log of ptxas.

    Raises:
        ValueError: the log is not of the form that this reads.
    """
    found: list[tuple[str, str, re.Match[str], re.Match[str], int]] = []
    entry: re.Match[str] | None = None
    memory: re.Match[str] | None = None
    for line in log.splitlines():
        entry = _ENTRY.search(line) or entry
        memory = _MEMORY.search(line) or memory
        used = _USED.search(line)
        if used is None:
            continue
        if entry is None or memory is None:
            raise ValueError(f"ptxas says registers of nothing: {line}")
        static = _STATIC.search(line)
        found.append((entry[1], entry[2], memory, used, int(static[1]) if static else 0))
        entry = memory = None
    kernels = []
    for name, (_, architecture, memory, used, static_bytes) in zip(
        _demangled([one[0] for one in found]), found, strict=True
    ):
        parts = _NAME.search(name)
        if parts is None:
            raise ValueError(f"no kernel is called so: {name}")
        kernels.append(
            Kernel(
                _short(parts[1]),
                architecture,
                int(parts[2]),
                int(used[1]),
                int(parts[3]) + static_bytes,
                int(memory[1]),
                int(memory[2]) + int(memory[3]),
            )
        )
    return kernels


def _short(name: str) -> str:
    for long, short in (("roundhouse::cuda::", ""), ("__nv_", ""), ("signed char", "int8"), ("fp8_e4m3", "fp8")):
        name = name.replace(long, short)
    return name


def _demangled(names: Sequence[str]) -> list[str]:
    """C++ names as written in the sources.

    Raises:
        FileNotFoundError: binutils, which come with a compiler, are not there.
    """
    if not names:
        return []
    tool = shutil.which("c++filt")
    if tool is None:
        raise FileNotFoundError("c++filt is missing; install binutils")
    done = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def logs(build: Path) -> dict[str, Path]:
    """Logs of ptxas from the last build of the CUDA library, by source."""
    folder = build / "CMakeFiles" / "roundhouse_cuda.dir" / "kernels" / "csrc" / "cuda"
    return {path.name.removesuffix(".o.ptxas"): path for path in sorted(folder.glob("*.cu.o.ptxas"))}


def built(build: Path) -> list[Kernel]:
    """The kernels of the CUDA library that was built last."""
    return [kernel for path in logs(build).values() for kernel in parse(path.read_text())]


def markdown(kernels: Iterable[Kernel]) -> str:
    lines = [
        "| kernel | GPU | threads | registers | shared memory | blocks | occupancy |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for kernel in sorted(kernels, key=lambda one: (one.name, one.architecture)):
        shared = f"{kernel.shared_bytes / 1024:.1f} KiB" if kernel.shared_bytes >= 1024 else f"{kernel.shared_bytes} B"
        lines.append(
            f"| {kernel.name} | {kernel.architecture} | {kernel.threads} | {kernel.registers} | {shared} "
            f"| {kernel.blocks} | {kernel.occupancy:.0%} |"
        )
    return "\n".join(lines)
