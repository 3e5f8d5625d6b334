"""The kernels on a CUDA device against its limits and torch: `python -m bench.kernels --device cuda`.

A figure is the time of one call among many that are recorded in a CUDA graph and replayed, so that it is the device's
alone. The limits, what copying within the device's memory and a square product reach, are measured in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import torch

from bench.kernel_cases_cuda import FULL, QUICK, CudaCase, CudaCases, CudaSizes
from bench.report import Environment, publish
from kernels import library
from kernels.registry import Cost

_WARM_UP = 3
_REPLAYS = 7
"""Of which the fastest counts."""


class CudaLimits(msgspec.Struct, frozen=True):
    copy_bandwidth: float
    """Bytes read and written per second by a copy within the device's memory."""
    matmul: float
    """FLOP per second of a square product in bf16."""

    def least(self, cost: Cost) -> float:
        """Seconds that the device needs for that at the least."""
        return max(cost.bytes / self.copy_bandwidth, cost.flops / self.matmul)


class CudaKernelRow(msgspec.Struct, frozen=True):
    """What was measured. Times in seconds."""

    op: str
    shape: str
    time: float
    bytes: int
    flops: int
    share: float
    """Of the device's limit: the time that it would need for the bytes or the FLOPs, whichever is longer."""
    peer_time: float | None
    aim: float | None


class CudaBench:
    """Measures on one device."""

    def __init__(self, device: torch.device, sizes: CudaSizes) -> None:
        self._device = device
        self._sizes = sizes

    def limits(self) -> CudaLimits:
        size = self._sizes.probe_size
        source = torch.ones(self._sizes.probe_bytes, dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        matrix = torch.randn(size, size, device=self._device).bfloat16()
        copying = self.time([partial(target.copy_, source)])
        return CudaLimits(2 * len(source) / copying, 2 * size**3 / self.time([partial(torch.matmul, matrix, matrix)]))

    def measure(self, case: CudaCase, limits: CudaLimits) -> CudaKernelRow:
        ours = self.time(case.calls)
        theirs = self.time(case.peers) if case.peers else None
        share = limits.least(case.cost) / ours
        return CudaKernelRow(case.op, case.shape, ours, case.cost.bytes, case.cost.flops, share, theirs, case.aim)

    @torch.inference_mode()
    def time(self, calls: Sequence[Callable[[], object]]) -> float:
        """Seconds of a call, the calls taking turns."""
        if self._device.type != "cuda":
            return _on_host(calls)
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):  # what is set up at a first call cannot be recorded
            for call in itertools.chain(calls, itertools.repeat(calls[0], _WARM_UP)):
                call()
        torch.cuda.synchronize(self._device)
        one = _replayed(calls[:1])
        count = max(len(calls), min(1000, math.ceil(self._sizes.seconds / one)))
        return _replayed([call for _, call in zip(range(count), itertools.cycle(calls), strict=False)]) / count


def _on_host(calls: Sequence[Callable[[], object]]) -> float:
    """Where there is no device: to see that all runs."""
    begun = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - begun) / len(calls)


def _replayed(calls: Sequence[Callable[[], object]]) -> float:
    """Seconds of all calls together, from a CUDA graph: the fastest of a few replays."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times: list[float] = []
    for _ in range(_REPLAYS):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return min(times)


def markdown(
    rows: Sequence[CudaKernelRow], limits: CudaLimits, environment: Environment, device: str, body: str
) -> str:
    lines = [
        "### Kernels on CUDA",
        "",
        "| op | shape | µs | GB/s | TFLOP/s | share of the limit | aim | torch µs | times as fast |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [
            row.op,
            row.shape,
            f"{row.time * 1e6:,.1f}",
            f"{row.bytes / row.time / 1e9:,.0f}",
            f"{row.flops / row.time / 1e12:,.1f}",
            f"{row.share:.0%}",
            "" if row.aim is None else f"{row.aim:.0%} {'✓' if row.share >= row.aim else '✗'}",
            "" if row.peer_time is None else f"{row.peer_time * 1e6:,.1f}",
            "" if row.peer_time is None else f"{row.peer_time / row.time:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"- measured in the same run: copying {limits.copy_bandwidth / 1e9:,.0f} GB/s (read and written), products in "
        f"bf16 {limits.matmul / 1e12:,.1f} TFLOP/s; the limit is whichever of bytes and FLOPs takes longer",
        f"- {environment.date}, revision {environment.revision}, {body} bodies, {device}, torch {environment.torch}; "
        "calls recorded in a CUDA graph, the fastest of a few replays",
        "",
    ]
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> None:
    """Of `bench.kernels`' options: device, ops (all unless given), quick, out."""
    device = torch.device(arguments.device)
    sizes = QUICK if arguments.quick else FULL
    bench = CudaBench(device, sizes)
    cases = CudaCases(device, sizes).by_op()
    torch.manual_seed(0)
    limits = bench.limits()
    rows: list[CudaKernelRow] = []
    failures: list[str] = []
    for op in arguments.ops.split(",") if arguments.ops else cases:
        for case in cases[op]():
            try:
                rows.append(bench.measure(case, limits))
                print(rows[-1], flush=True)
            except torch.OutOfMemoryError as error:  # the others may fit
                failures.append(f"{case.op}, {case.shape}: {error}")
                print(failures[-1], flush=True)
    found = library.cuda if device.type == "cuda" else library.cpu
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    text = markdown(rows, limits, Environment.here(), name, library.REFERENCE if found is None else found.isa)
    text += "".join(f"- not measured: {failure}\n" for failure in failures)
    stem = arguments.out / f"kernels-{device.type}{'-quick' if arguments.quick else ''}"
    publish(stem, text, {"limits": limits, "rows": rows})
