"""The built libraries: where they are, which instruction set this machine's CPU has, and which one serves.

There is one library per CPU instruction set, from the same sources, and one for CUDA. `ROUNDHOUSE_CPU_ISA` forces one
of the former; `reference` forces plain torch, which also serves without a library, and
`roundhouse doctor` says why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent / "lib"
"""Folder into which the build puts the libraries."""
ISAS = ("avx2", "avx512", "amx")
"""Instruction sets that the CPU bodies are built for, each a superset of the ones before."""
TYPES = (torch.float32, torch.bfloat16)
"""Types of activations that built bodies take."""
TYPES = (torch.float32, torch.bfloat16)
"""Types of activations that built bodies take."""
REFERENCE = "reference"
VARIABLE = "ROUNDHOUSE_CPU_ISA"

_NEEDS: dict[str, tuple[str, ...]] = {
    "avx2": ("avx2", "fma3", "f16c", "bmi2"),
    "avx512": ("avx512_f", "avx512_bw", "avx512_dq", "avx512_vl", "avx512_vnni", "avx512_vbmi"),
    "amx": ("avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"),
}
"""Capabilities that each needs beyond the one before, as `torch.cpu.get_capabilities` names them."""


class Library:
    """The functions of one built library, as attributes."""

    def __init__(self, isa: str, path: Path) -> None:
        """Load a library.

        Raises:
            OSError, RuntimeError: the file cannot be loaded.
        """
        # The library finds libtvm_ffi and OpenMP among what these two have loaded.
        import tvm_ffi

        self.isa = isa
        self._module = tvm_ffi.load_module(str(path))
        if not self.initialize():
            raise RuntimeError(f"the system does not let this process use {isa}")

    @property
    def is_cuda(self) -> bool:
        """Whether it has the CUDA bodies, on a device or under the emulator: some of them take more arguments."""
        return self.isa not in ISAS

    def __getattr__(self, name: str) -> Any:
        function = self._module.get_function(name)
        setattr(self, name, function)
        return function

    @cache  # noqa: B019 - libraries are never unloaded
    def has(self, name: str) -> bool:
        """Whether it has a function of this name."""
        return bool(self._module.implements_function(name))


@cache
def supported() -> tuple[str, ...]:
    """Instruction sets of `ISAS` that this CPU has."""
    capabilities = torch.cpu.get_capabilities()
    found: list[str] = []
    for isa in ISAS:
        if not all(capabilities.get(name, False) for name in _NEEDS[isa]):
            break
        found.append(isa)
    return tuple(found)


@cache
def load(isa: str) -> Library:
    """The CPU library for an instruction set.

    Raises:
        OSError, RuntimeError: it has not been built, or cannot be loaded here.
    """
    path = FOLDER / f"libroundhouse_cpu_{isa}.so"
    if not path.exists():
        raise FileNotFoundError(f"{path} has not been built; install g++, then run: python -m kernels.build")
    return Library(isa, path)


def _choose() -> tuple[Library | None, str]:
    """The library that serves on this machine's CPU, and why it is this one or none.

    Raises:
        ValueError: the environment asks for one that cannot serve.
    """
    forced = os.environ.get(VARIABLE, "")
    if forced == REFERENCE:
        return None, f"{VARIABLE} asks for it"
    if forced and forced not in ISAS:
        raise ValueError(f"{VARIABLE} is {forced!r}; it may be {', '.join(ISAS)} or {REFERENCE}")
    if forced and forced not in supported():
        raise ValueError(f"{VARIABLE} is {forced!r}, which this CPU does not have; it has {', '.join(supported())}")
    if forced:
        return load(forced), f"{VARIABLE} asks for it"
    reason = "this CPU has no AVX2"
    for isa in supported()[::-1]:
        try:
            return load(isa), "the best that this CPU has"
        except (OSError, RuntimeError) as error:
            reason = str(error)
    return None, reason


cpu, reason = _choose()
"""The library that serves on the CPU, None for plain torch; and why."""


EMULATOR = "emulator"
"""Name of the library with the CUDA bodies as host code, one thread after the other: for tests only."""


@cache
def load_cuda(name: str = "cuda") -> Library:
    """The CUDA library, or with `EMULATOR` the one that runs the same sources on tensors of the CPU.

    Raises:
        OSError, RuntimeError: it has not been built, or cannot be loaded here.
    """
    path = FOLDER / f"libroundhouse_{name}.so"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} has not been built; install the CUDA toolkit, then run: python -m kernels.build"
        )
    return Library(name, path)


def _choose_cuda() -> tuple[Library | None, str]:
    if not torch.cuda.is_available():
        return None, "torch finds no CUDA device"
    if torch.cuda.get_device_capability() < (8, 0):
        return None, "the device is older than sm_80"
    try:
        return load_cuda(), "there is a CUDA device"
    except (OSError, RuntimeError) as error:
        return None, str(error)


cuda, cuda_reason = _choose_cuda()
"""The library that serves on CUDA, None for plain torch; and why."""


def of(x: torch.Tensor, function: str | None = None) -> Library | None:
    """The library that serves where x is; None, for plain torch, if there is none or it lacks `function`."""
    found = cpu if x.is_cpu else cuda
    return None if found is None or (function is not None and not found.has(function)) else found


def required(x: torch.Tensor) -> Library:
    """The library that serves where x is.

    Raises:
        RuntimeError: none is built.
    """
    found = of(x)
    if found is None:
        raise RuntimeError(f"no library is built that serves on {x.device.type}")
    return found


@contextmanager
def using(library: Library | None) -> Iterator[None]:
    """Let another library serve for a while; for tests and measurements in one thread."""
    global cpu
    before, cpu = cpu, library
    try:
        yield
    finally:
        cpu = before
