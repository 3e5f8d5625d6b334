"""Compiles the CUDA sources with a fault in them for the emulator, to see that the tests notice it."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tvm_ffi import libinfo

from kernels import library
from kernels.build import BUILD, ROOT

SEEDS = range(7)
"""Schedules: 0 is in step, the odd ones let warps run ahead, and a third of them let copies arrive at once."""
_CSRC = ROOT / "kernels" / "csrc"
_HOST = BUILD / "kernels" / "csrc" / "emulator" / "libroundhouse_emulator_host.a"


@dataclass(frozen=True, slots=True)
class Fault:
    """A changed line of a header."""

    name: str
    header: str
    """Path of the header below `include/roundhouse`."""
    old: str
    new: str
    message: str | None = None
    """What the error must say, if the emulator raises it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel in which faults are planted."""

    source: str
    """Name of the source in `cuda/`, without its ending."""
    functions: list[str]
    """Functions of the library that the run needs."""
    run: Callable[[library.Library], torch.Tensor]
    """Runs the kernel, checks the result and returns it."""


def check(run: Callable[[library.Library], torch.Tensor], body: library.Library) -> None:
    """Run an op under every schedule; it must give the same bits each time.

    Raises:
        AssertionError, RuntimeError: it does not, or `run` or the emulator finds a fault.
    """
    results: list[torch.Tensor] = []
    try:
        for seed in SEEDS:
            body.set_seed(seed)
            results.append(run(body))
            assert torch.equal(results[0], results[-1]), "the result depends on the schedule"
    finally:
        body.set_seed(0)


def compile_with(fault: Fault, source: str, functions: list[str], folder: Path) -> library.Library:
    """Compile the library of `cuda/<source>.cu` with a fault, which has these functions only."""
    if not _HOST.exists():
        pytest.skip("the emulator is not built: install the CUDA toolkit's headers, then run `python -m kernels.build`")
    shutil.copytree(_CSRC / "include", folder / "include")
    shutil.copytree(_CSRC / "cuda", folder / "cuda")
    header = folder / "include" / "roundhouse" / fault.header
    text = header.read_text()
    assert text.count(fault.old) == 1, f"{fault.header} has no such line, or several: {fault.old}"
    header.write_text(text.replace(fault.old, fault.new))
    for command in _commands(source, functions, folder):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return library.Library(fault.name, folder / "faulty.so")


def _commands(source: str, functions: list[str], folder: Path) -> list[list[str]]:
    """Compile as the build does, but for the place of the sources and less optimised; then link."""
    original = str(_CSRC / "cuda" / f"{source}.cu")
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    sources = [e for e in entries if e["file"].endswith(".cu") and "ROUNDHOUSE_EMULATOR" in e["command"]]
    (entry,) = [e for e in sources if e["file"] == original]
    words = shlex.split(entry["command"])
    compiler, flags = words[0], words[1 : words.index("-o")]
    includes = [f"-I{folder / 'include'}", f"-I{folder}"]
    compile_ = [compiler, *includes, *flags, "-O1", "-Wno-error", "-c", str(folder / "cuda" / f"{source}.cu")]
    wanted = [f"-Wl,-u,__tvm_ffi_{name}" for name in ("initialize", "set_seed", *functions)]
    # The faulty source first: of what headers define the linker takes the first.
    others = [str(BUILD / _output(e["command"])) for e in sources if e is not entry]
    objects = [str(folder / "faulty.o"), *others, str(_HOST), libinfo.find_libtvm_ffi()]
    link = [compiler, "-shared", *wanted, *objects, "-o", str(folder / "faulty.so")]
    return [[*compile_, "-o", str(folder / "faulty.o")], link]


def _output(command: str) -> str:
    words = shlex.split(command)
    return words[words.index("-o") + 1]
