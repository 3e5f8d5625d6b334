"""Measured figures: timed tokens of requests, what follows from them, and the machine's own limits."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from bench.checkpoints import LlamaSizes
from bench.subjects.interface import Precision, RequestBatch, Trace

_WEIGHT_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5625}
"""Bytes of one weight; int4 with a scale of 16 bits per 32 weights, as most formats have it or nearly so."""
_KV_BYTES = {"fp32": 4, "bf16": 2, "int8": 2, "int4": 2}
_PROBE_SIZE = 2048
_TRIAL_SIZE = 256
_PROBE_REPEATS = 5


class MachineLimits(msgspec.Struct, frozen=True):
    """The machine's limits at one moment, with all threads."""

    read_bandwidth: float
    """Bytes per second that can be read."""
    matmul: float
    """FLOP per second of a square product in bf16, or in fp32 where that is faster."""


class Measurement(msgspec.Struct, frozen=True):
    """One subject in one cell: a row of the table. Times in seconds, memory in bytes."""

    model: str
    precision: Precision
    cell: str
    subject: str
    tokens_per_second: float
    ttft_p50: float
    ttft_p95: float
    itl_p50: float
    itl_p95: float
    peak_memory: int
    """Most resident memory beyond that of the process before it loaded the model."""
    roofline: float
    """Share of the decode roofline: the time that a step needs at the least, over the median ITL."""
    prefill: float
    """Share of the matmul limit while the prompts ran: their FLOPs over the time until all had their first token."""
    machine: MachineLimits
    """Mean of the machine's limits measured before and after."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.model, self.precision, self.cell, self.subject


def prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Return random token ids; the first three ids are left out, as they are special in many vocabularies."""
    generator = random.Random(seed)
    return [[generator.randrange(3, vocabulary) for _ in range(length)] for _ in range(count)]


def summarise(
    traces: Sequence[Trace], batch: RequestBatch, shape: LlamaSizes, precision: Precision, machine: MachineLimits
) -> dict[str, float]:
    """Return the figures of one run, by the names that `Measurement` has for them."""
    firsts = [trace.times[0] for trace in traces]
    gaps = [later - earlier for trace in traces for earlier, later in pairwise(trace.times)]
    itl = quantile(gaps, 0.5)
    requests, length = len(traces), len(batch.prompts[0])
    context = length + batch.new_tokens / 2
    kv = _KV_BYTES[precision] * requests * context * shape.kv_elements
    step_bytes = _WEIGHT_BYTES[precision] * shape.read_parameters + kv
    step_flops = 2 * shape.read_parameters * requests
    # A prefix that all share need be computed once; the head for one token of each request.
    prompt_tokens = batch.shared_tokens + requests * (length - batch.shared_tokens)
    prompt_flops = 2 * (shape.read_parameters - shape.hidden_size * shape.vocab_size) * prompt_tokens
    return {
        "tokens_per_second": requests * batch.new_tokens / max(trace.times[-1] for trace in traces),
        "ttft_p50": quantile(firsts, 0.5),
        "ttft_p95": quantile(firsts, 0.95),
        "itl_p50": itl,
        "itl_p95": quantile(gaps, 0.95),
        # Tokens that come several at a time say nothing about a step.
        "roofline": max(step_bytes / machine.read_bandwidth, step_flops / machine.matmul) / itl if itl else 0.0,
        "prefill": prompt_flops / machine.matmul / max(firsts),
    }


def median(runs: Sequence[Measurement]) -> Measurement:
    """Return the median of every field, over repeats of one row."""
    values = {
        name: statistics.median(getattr(run, name) for run in runs)
        for name in Measurement.__struct_fields__
        if isinstance(getattr(runs[0], name), (int, float))
    }
    machine = MachineLimits(
        statistics.median(run.machine.read_bandwidth for run in runs),
        statistics.median(run.machine.matmul for run in runs),
    )
    values["peak_memory"] = int(values["peak_memory"])
    return msgspec.structs.replace(runs[0], **values, machine=machine)


def mean(before: MachineLimits, after: MachineLimits) -> MachineLimits:
    return MachineLimits((before.read_bandwidth + after.read_bandwidth) / 2, (before.matmul + after.matmul) / 2)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def probe(dtype: str, size: int) -> MachineLimits:
    """Measure the machine: reading `size` bytes, and a square matrix product; the best of a few tries each.

    `size` should exceed the last-level cache. Where the CPU has no instructions for `dtype`, torch's products in it are
    far slower than those in fp32: the faster one's rate counts.
    """
    import numpy as np
    import torch

    def product(dtype: torch.dtype, size: int) -> Callable[[], object]:
        matrix = torch.ones(size, size, dtype=dtype)
        return lambda: matrix @ matrix

    # numpy asks for huge pages, torch does not.
    data = torch.from_numpy(np.ones(size // 4, np.int32))
    faster = min((getattr(torch, dtype), torch.float32), key=lambda each: _best(product(each, _TRIAL_SIZE)))
    return MachineLimits(size / _best(data.amax), 2 * _PROBE_SIZE**3 / _best(product(faster, _PROBE_SIZE)))


def _best(run: Callable[[], object]) -> float:
    """Return the seconds of the fastest of a few runs."""
    times = []
    for _ in range(_PROBE_REPEATS):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return min(times)


class ResidentMemory:
    """Resident memory of a process, as the kernel counts it (Linux)."""

    def __init__(self, pid: int | str = "self") -> None:
        self._folder = Path("/proc") / str(pid)

    def now(self) -> int:
        return self._status("VmRSS")

    def peak(self) -> int:
        """Return the most resident memory since `reset_peak`, or since the process began."""
        return self._status("VmHWM")

    def reset_peak(self) -> None:
        (self._folder / "clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"{self._folder}/status has no {name}")
