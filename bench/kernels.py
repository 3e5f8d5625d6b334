"""The kernels against this machine's limits and torch: `python -m bench.kernels [--device cuda] [--ops linear]`.

A figure is the fastest of many calls. The limits are measured in the same run.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from bench import kernels_cuda
from bench.kernel_cases import CASES, READ_BYTES, CpuCase
from bench.measure import probe
from bench.report import Environment, publish
from kernels import library

RESULTS = Path(__file__).parent / "results"
_PROBE_SIZE = 2048
"""Rows and columns of int8 matrices."""
_SECONDS = 0.15
"""For each figure."""


class CpuLimits(msgspec.Struct, frozen=True):
    """What the machine can do with all threads."""

    read_bandwidth: float
    """Bytes per second."""
    rates: dict[str, float]
    """FLOP per second of a square product, by type."""


class CpuKernelRow(msgspec.Struct, frozen=True):
    """What was measured. Times in seconds."""

    op: str
    shape: str
    time: float
    bytes: int
    flops: int
    share: float
    """Of the machine's limit: the time that it would need for the bytes or the FLOPs, whichever is longer."""
    peer_time: float | None


def best(run: Callable[[], object], seconds: float = _SECONDS) -> float:
    """Seconds of the fastest of as many calls as fit into `seconds`, three at least."""
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return min(times)


def measure_limits() -> CpuLimits:
    machines = {dtype: probe(dtype, READ_BYTES) for dtype in ("bfloat16", "float32")}
    bandwidth = max(machine.read_bandwidth for machine in machines.values())
    numbers = torch.ones(_PROBE_SIZE, _PROBE_SIZE, dtype=torch.int8)
    int8 = 2 * _PROBE_SIZE**3 / best(lambda: torch._int_mm(numbers, numbers.T))
    return CpuLimits(bandwidth, {dtype: machine.matmul for dtype, machine in machines.items()} | {"int8": int8})


def measure(case: CpuCase, limits: CpuLimits) -> CpuKernelRow:
    ours, theirs = best(case.run), None if case.peer is None else best(case.peer)
    least = max(case.bytes / limits.read_bandwidth, case.flops / limits.rates[case.rate])
    return CpuKernelRow(case.op, case.shape, ours, case.bytes, case.flops, least / ours, theirs)


def markdown(rows: list[CpuKernelRow], limits: CpuLimits, environment: Environment, body: str, threads: int) -> str:
    rates = ", ".join(f"{dtype} products {rate / 1e12:.2f} TFLOP/s" for dtype, rate in limits.rates.items())
    lines = [
        "### Kernels on the CPU",
        "",
        "| op | shape | µs | GB/s | GFLOP/s | share of the limit | torch µs | times as fast |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [
            row.op,
            row.shape,
            f"{row.time * 1e6:,.1f}",
            f"{row.bytes / row.time / 1e9:.1f}" if row.bytes else "in caches",
            f"{row.flops / row.time / 1e9:,.0f}",
            f"{row.share:.0%}",
            "" if row.peer_time is None else f"{row.peer_time * 1e6:,.1f}",
            "" if row.peer_time is None else f"{row.peer_time / row.time:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"- measured in the same run: reading {limits.read_bandwidth / 1e9:.1f} GB/s, {rates}",
        f"- {environment.date}, revision {environment.revision}, {body} bodies, {threads} threads, torch "
        f"{environment.torch}, {environment.cpu}, {environment.cores} cores; the fastest of many calls",
        "",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("--ops", help="which, separated by commas; all unless given")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="of cuda: small sizes, to see that all works")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the table and its JSON")
    arguments = parser.parse_args(argv)
    if arguments.device != "cpu" or arguments.quick:
        kernels_cuda.run(arguments)
        return
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    limits = measure_limits()
    rows = []
    for op in arguments.ops.split(",") if arguments.ops else CASES:
        for case in CASES[op]():
            rows.append(measure(case, limits))
            print(rows[-1], flush=True)
    body = library.REFERENCE if library.cpu is None else library.cpu.isa
    text = markdown(rows, limits, Environment.here(), body, arguments.threads)
    publish(arguments.out / "kernels-cpu", text, {"limits": limits, "rows": rows})


if __name__ == "__main__":
    main()
