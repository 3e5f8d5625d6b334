"""The kernels against the device's limits and torch: `python -m bench.kernels [--device cuda] [--ops linear]`.

On the CPU a figure is the fastest of many calls; on a CUDA device it is the time of one call among many that are
recorded in a CUDA graph and replayed, so that it is the device's alone. The limits are measured in the same run.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import torch

from bench import kernel_sizes
from bench.kernel_cases import KernelCase, KernelCases
from bench.kernel_sizes import KernelSizes
from bench.kernels_cuda import replayed_time
from bench.measure import probe
from bench.report import Environment, options, publish, table
from kernels import library
from kernels.registry import Cost

Timer = Callable[[Sequence[Callable[[], object]]], float]
"""Measures the seconds of one of the calls, which take turns."""


class KernelLimits(msgspec.Struct, frozen=True):
    """The device's limits, for a CPU with all threads."""

    bandwidth: float
    """Bytes per second, read on a CPU, and read and written by a copy within the memory of a CUDA device."""
    rates: dict[str, float]
    """FLOP per second of a square product, by type; a type that is missing counts as bfloat16."""

    def least(self, cost: Cost, rate: str) -> float:
        """Return the least seconds that the device needs for a cost."""
        return max(cost.bytes / self.bandwidth, cost.flops / self.rates.get(rate, self.rates["bfloat16"]))

    def __str__(self) -> str:
        rates = ", ".join(f"{dtype} products {rate / 1e12:,.2f} TFLOP/s" for dtype, rate in self.rates.items())
        return f"moving {_figure(self.bandwidth / 1e9)} GB/s, {rates}"


class KernelRow(msgspec.Struct, frozen=True):
    """Results of one case. Times in seconds."""

    op: str
    shape: str
    time: float
    bytes: int
    flops: int
    share: float
    """Share of the device's limit: the time that it would need for the bytes or the FLOPs, whichever is longer."""
    peer_time: float | None
    aim: float | None

    def __str__(self) -> str:
        cells = [
            *(self.op, self.shape, f"{self.time * 1e6:,.1f}"),
            _figure(self.bytes / self.time / 1e9) if self.bytes else "in caches",
            f"{self.flops / self.time / 1e12:,.{1 if self.flops / self.time >= 1e13 else 3}f}",
            f"{self.share:.0%}",
            "" if self.aim is None else f"{self.aim:.0%} {'✓' if self.share >= self.aim else '✗'}",
            "" if self.peer_time is None else f"{self.peer_time * 1e6:,.1f}",
            "" if self.peer_time is None else f"{self.peer_time / self.time:.2f}",
        ]
        return " | ".join(cells)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def timer(device: torch.device, seconds: float) -> Timer:
    """Return what times calls on a device, for about so long."""
    measured = replayed_time if device.type == "cuda" else fastest
    return partial(measured, seconds=seconds)


def fastest(calls: Sequence[Callable[[], object]], seconds: float) -> float:
    """Return the seconds of the fastest of as many calls as fit into `seconds`, three at least."""
    calls[0]()
    times: list[float] = []
    end = time.perf_counter() + seconds
    for call in itertools.cycle(calls):
        begun = time.perf_counter()
        if begun >= end and len(times) >= 3:
            break
        call()
        times.append(time.perf_counter() - begun)
    return min(times)


def measure_limits(device: torch.device, sizes: KernelSizes) -> KernelLimits:
    """Measure the device's limits as they are now."""
    measured, size, flops = timer(device, sizes.seconds), sizes.probe_size, 2 * sizes.probe_size**3
    if device.type == "cuda":
        source = torch.ones(sizes.probe_bytes, dtype=torch.uint8, device=device)
        copying = measured([partial(torch.empty_like(source).copy_, source)])
        matrix = torch.randn(size, size, device=device).bfloat16()
        product = measured([partial(torch.matmul, matrix, matrix)])
        return KernelLimits(2 * len(source) / copying, {"bfloat16": flops / product})
    machines = {dtype: probe(dtype, sizes.probe_bytes) for dtype in ("bfloat16", "float32")}
    numbers = torch.ones(size, size, dtype=torch.int8)
    int8 = flops / measured([partial(torch._int_mm, numbers, numbers.T)])
    return KernelLimits(
        max(machine.read_bandwidth for machine in machines.values()),
        {dtype: machine.matmul for dtype, machine in machines.items()} | {"int8": int8},
    )


def measure(case: KernelCase, limits: KernelLimits, measured: Timer) -> KernelRow:
    ours, theirs = measured(case.calls), measured(case.peers) if case.peers else None
    share = limits.least(case.cost, case.rate) / ours
    return KernelRow(case.op, case.shape, ours, case.cost.bytes, case.cost.flops, share, theirs, case.aim)


def markdown(rows: Sequence[KernelRow], limits: KernelLimits, device: str, conditions: Sequence[str]) -> str:
    """Return the table, and the conditions."""
    columns = "op | shape | µs | GB/s | TFLOP/s | share of the limit | aim | torch µs | times as fast"
    notes = [f"measured in the same run: {limits}; the limit is whichever of bytes and FLOPs takes longer", *conditions]
    lines = [f"### Kernels on {device}", "", *table(columns, map(str, rows), words=2), ""]
    return "\n".join([*lines, *(f"- {note}" for note in notes), ""])


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--ops", help="ops to time, separated by commas; all unless given")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that all works")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    full = kernel_sizes.CUDA if device.type == "cuda" else kernel_sizes.CPU
    sizes = kernel_sizes.QUICK if arguments.quick else full
    limits, cases = measure_limits(device, sizes), KernelCases(device, sizes).by_op()
    rows: list[KernelRow] = []
    failures: list[str] = []
    for op in arguments.ops.split(",") if arguments.ops else cases:
        for case in cases[op]():
            try:
                rows.append(measure(case, limits, timer(device, sizes.seconds)))
                print(rows[-1], flush=True)
            except torch.OutOfMemoryError as error:  # the others may fit
                failures.append(f"not measured: {case.op}, {case.shape}: {error}")
                print(failures[-1], flush=True)
    found = library.cuda if device.type == "cuda" else library.cpu
    body = library.REFERENCE if found is None else found.isa
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{arguments.threads} threads"
    text = markdown(rows, limits, device.type.upper(), [f"{Environment.here()}; {body} bodies, {name}", *failures])
    stem = arguments.output / f"kernels-{device.type}{'-quick' if arguments.quick else ''}"
    publish(stem, text, {"limits": limits, "rows": rows})


if __name__ == "__main__":
    main()
