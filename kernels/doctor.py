"""Examines what the kernels run on: `python -m kernels.doctor` prints one finding per line of JSON.

`roundhouse doctor` runs it as a process of its own and shows it beside what it finds out about the rest. The process
fails, with the reason as the last line of its standard error, where the kernels cannot even be imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import torch

from kernels import library
from kernels.registry import OPS

State = Literal["ok", "note", "warning", "broken"]
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_LEFT_TO_TORCH = "torch, as intended"
_REBUILD = "python -m kernels.build in a checkout, or install the package again"


class DeviceFinding(msgspec.Struct, frozen=True):
    """One thing that was examined, and its state."""

    area: str
    name: str
    value: str
    state: State = "ok"
    remedy: str = ""
    """What to do about the finding, empty if it is ok."""


def examine() -> Iterator[DeviceFinding]:
    """Everything there is to know without running anything for long."""
    yield DeviceFinding("cpu", "model", _cpu_model())
    yield _instruction_set()
    yield from _libraries()
    yield _threads()
    yield _openmp()
    yield from _caches()
    yield from _huge_pages()
    yield from _cuda()
    yield from _ops()


def _cpu_model() -> str:
    names = Counter(_field("/proc/cpuinfo", "model name"))
    return ", ".join(names) or "unknown"


def _field(path: str, name: str) -> list[str]:
    """The values of a `name: value` file of the kernel; none where there is no such file."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return []
    return [value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == name]


def _instruction_set() -> DeviceFinding:
    name = "kernels"
    forced = os.environ.get(library.VARIABLE, "")
    if library.cpu is None:
        value = f"plain torch, because {library.reason}"
        if forced:
            remedy = f"unset {library.VARIABLE} to use the fast kernels"
        elif not library.supported():
            remedy = "use a CPU with AVX2 (x86-64 since 2013)"
        elif shutil.which("g++") is None:
            remedy = (
                "apt-get install g++, then install the package again (or run python -m kernels.build in a checkout)"
            )
        else:
            remedy = f"build them: {_REBUILD}"
        return DeviceFinding("cpu", name, value, "warning", remedy)
    best = library.supported()[-1]
    value = f"{library.cpu.isa}: {library.reason}"
    if library.cpu.isa == best:
        return DeviceFinding("cpu", name, value)
    remedy = f"unset {library.VARIABLE} to use {best}" if forced else f"build {best}: {_REBUILD}"
    return DeviceFinding("cpu", name, f"{value}; this CPU has {best}" if forced else value, "warning", remedy)


def _libraries() -> Iterator[DeviceFinding]:
    """Libraries that this CPU could run but that cannot be loaded; only the best one is of use."""
    for isa in library.supported():
        try:
            library.load(isa)
        except (OSError, RuntimeError) as error:
            yield DeviceFinding("cpu", f"library {isa}", str(error), "note", f"build it: {_REBUILD}")


def _threads() -> DeviceFinding:
    cores, used = len(os.sched_getaffinity(0)), torch.get_num_threads()
    policy = os.environ.get("OMP_WAIT_POLICY", "not set")
    value = f"{used} by default on {cores} cores (engines: --threads); OMP_WAIT_POLICY {policy}"
    quota = _cpu_quota()
    if quota is not None:
        value += f"; this container may use {quota:g} cores"
        if quota < used:
            remedy = f"give engines at most {max(1, int(quota))} threads in all: more only wait for each other"
            return DeviceFinding("cpu", "threads", value, "warning", remedy)
    return DeviceFinding("cpu", "threads", value)


def _cpu_quota() -> float | None:
    """Cores that the control group of this process may use, if it is limited (version 2)."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _openmp() -> DeviceFinding:
    """OpenMP libraries in this process: with more than one, two pools of threads share the cores."""
    try:
        mapped = Path("/proc/self/maps").read_text()
    except OSError:
        mapped = ""
    paths = {line.split(maxsplit=5)[5] for line in mapped.splitlines() if line.count("/") > 0 and "omp" in line}
    names = sorted({Path(path).name for path in paths if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))})
    if len(names) > 1:
        remedy = (
            "look for a package that brings an OpenMP of its own, and remove it: two pools of threads share the cores"
        )
        return DeviceFinding("cpu", "OpenMP", ", ".join(names), "warning", remedy)
    return DeviceFinding("cpu", "OpenMP", ", ".join(names) or "unknown")


def _caches() -> Iterator[DeviceFinding]:
    sizes = []
    for index in sorted(_CACHES.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        sizes.append(f"L{level}{'i' if kind == 'Instruction' else 'd' if kind == 'Data' else ''} {size}")
    if sizes:
        yield DeviceFinding("cpu", "caches", ", ".join(sizes))


def _huge_pages() -> Iterator[DeviceFinding]:
    try:
        modes = _HUGE_PAGES.read_text()
    except OSError:
        return
    chosen = modes.partition("[")[2].partition("]")[0]
    if chosen == "never":
        remedy = f"echo madvise > {_HUGE_PAGES}: large weights are read faster from huge pages"
        yield DeviceFinding("cpu", "huge pages", chosen, "note", remedy)
    else:
        yield DeviceFinding("cpu", "huge pages", chosen)


def _cuda() -> Iterator[DeviceFinding]:
    driver = _driver()
    built = torch.version.cuda
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            value = f"{properties.name}, sm_{properties.major}{properties.minor}, {properties.total_memory >> 20} MiB"
            yield DeviceFinding("cuda", f"device {number}", value)
        yield DeviceFinding("cuda", "driver", f"{driver or 'unknown'}; torch is built for CUDA {built}")
        if library.cuda is None:
            remedy = f"install the CUDA toolkit (nvcc), then build: {_REBUILD}"
            yield DeviceFinding("cuda", "kernels", f"plain torch, because {library.cuda_reason}", "warning", remedy)
        else:
            yield DeviceFinding("cuda", "kernels", f"{library.cuda.isa}: {library.cuda_reason}")
    elif driver is not None and built is None:
        remedy = (
            "if engines are to use the GPU, install a torch that is built for CUDA: https://pytorch.org/get-started"
        )
        yield DeviceFinding(
            "cuda", "device", f"the driver {driver} is here, but this torch is for CPUs only", "warning", remedy
        )
    elif driver is not None:
        remedy = (
            f"update the driver to one for CUDA {built}, or see what python -c 'import torch; torch.cuda.init()' says"
        )
        yield DeviceFinding(
            "cuda", "device", f"the driver {driver} is here, but torch cannot use it", "warning", remedy
        )
    else:
        yield DeviceFinding("cuda", "device", "none: engines run on the CPU")


def _driver() -> str | None:
    """The version of NVIDIA's driver, None without one."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), "of unknown version")


def _ops() -> Iterator[DeviceFinding]:
    """Which body serves each op, and what a library lacks that is older than the sources."""
    for device, chosen in (("cpu", library.cpu), ("cuda", library.cuda)):
        if device == "cuda" and chosen is None:
            continue
        by_body: dict[str, list[str]] = {}
        for op in OPS.values():
            meant = chosen is None or device in op.built
            by_body.setdefault(op.body(device) if meant else _LEFT_TO_TORCH, []).append(op.name)
        for body, names in by_body.items():
            listed = ", ".join(sorted(names))
            if body == library.REFERENCE and chosen is not None:
                remedy = f"if the library is older than the sources, build it again: {_REBUILD}"
                yield DeviceFinding(device, "ops: plain torch", listed, "note", remedy)
            else:
                yield DeviceFinding(device, f"ops: {'plain torch' if body == library.REFERENCE else body}", listed)


def versions() -> Iterator[DeviceFinding]:
    """Versions of the packages that the kernels stand on."""
    for package in ("torch", "apache-tvm-ffi", "numpy"):
        yield DeviceFinding("versions", package, importlib.metadata.version(package))


def main() -> None:
    encoder = msgspec.json.Encoder()
    for finding in (*versions(), *examine()):
        print(encoder.encode(finding).decode())


if __name__ == "__main__":
    main()
