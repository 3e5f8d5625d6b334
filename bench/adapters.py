"""Measures decode steps over the number of distinct adapters in the batch, beside the limit for the same bytes.

    python -m bench.adapters                  a model of 6 M parameters, 64 requests, rank 16 on all linear layers
    python -m bench.adapters --quick          a smoke run

All requests decode in one batch; request i uses adapter i modulo n. The adapters are random, in peft's format, and take
the engine's own way: checked, prepared, installed in blocks of the KV cache. The roofline is the time that reading the
base's weights, the batch's KV and the n adapters once takes, at the bandwidth that is measured around the runs.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from tqdm import tqdm

from bench.checkpoints import directory_of
from bench.measure import MachineLimits, mean, probe
from bench.report import Environment, options, picture, publish, table

if TYPE_CHECKING:
    from engine.checkpoint.config import ModelConfig
    from engine.execution.runner import ModelRunner

_WARM_STEPS = 3


class Point(msgspec.Struct, frozen=True):
    """Decode steps with one number of distinct adapters; 0 is the base model alone."""

    adapters: int
    step_seconds: float
    """Seconds of a decode step: the median over a run's steps, then over the runs."""
    tokens_per_second: float
    step_bytes: int
    """Bytes of weights, KV and adapters that a step has to read."""
    roofline_seconds: float
    """Seconds that reading those bytes once takes."""


class Curve(msgspec.Struct, frozen=True):
    """All points of one model, with the conditions."""

    model: str
    dtype: str
    batch: int
    rank: int
    context: int
    """Tokens of each request's KV in the middle of a run."""
    adapter_bytes: int
    """Bytes of one adapter on the device."""
    threads: int
    repeats: int
    machine: MachineLimits
    points: list[Point]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    if arguments.quick:
        arguments.counts, arguments.batch, arguments.steps, arguments.repeats = [1, 2, 4], 4, 4, 1
        arguments.prompt_tokens, arguments.probe_bytes = 8, 1 << 20
    # As in the engine's own process: engines share a machine's cores, so that threads without work must sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment = Environment.here()
    curve = _measure(arguments)
    stem = arguments.output / f"adapters-{curve.model}-{curve.dtype}"
    publish(stem, markdown(curve, environment), {"environment": environment, "curve": curve})
    plot(curve, stem.with_suffix(".png"))


def _measure(arguments: argparse.Namespace) -> Curve:
    """Run every number of adapters `repeats` times, in an order that rotates."""
    import torch

    from bench.random_adapters import RandomAdapters
    from engine.cache.blocks import BLOCK_SIZE
    from engine.execution.precision import Precision
    from engine.execution.runner import ModelRunner

    torch.set_num_threads(arguments.threads)
    counts = [0, *arguments.counts]
    blocks = arguments.batch * -(-(arguments.prompt_tokens + _WARM_STEPS + arguments.steps) // BLOCK_SIZE)
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    before = probe(arguments.dtype, arguments.probe_bytes)
    model = directory_of(arguments.model)
    with tempfile.TemporaryDirectory() as folder:
        source = RandomAdapters(Path(folder), model, rank=arguments.rank, count=max(counts))
        dtype = getattr(torch, arguments.dtype)
        sectors = source.sectors(dtype, dtype)
        total = blocks + sectors * max(counts)
        runner = ModelRunner(model, blocks=total, precision=Precision(arguments.dtype), adapters=source)
        assert runner.bank is not None
        for index, version in enumerate(source.versions):
            first = blocks + index * sectors
            runner.bank.install(version, range(first, first + runner.bank.prepare(version)))
        with tqdm(total=arguments.repeats * len(counts), unit="run", disable=None) as progress:
            for turn in range(arguments.repeats):
                for count in counts[turn % len(counts) :] + counts[: turn % len(counts)]:
                    progress.set_postfix_str(f"{count} adapters")
                    seconds[count].append(_decode(runner, source.versions[:count], arguments))
                    progress.update()
        adapter_bytes = sectors * runner.bank.sector_bytes
    machine = mean(before, probe(arguments.dtype, arguments.probe_bytes))
    context = arguments.prompt_tokens + _WARM_STEPS + arguments.steps // 2
    base_bytes = _base_bytes(runner.config, arguments.batch * context, getattr(torch, arguments.dtype).itemsize)
    return Curve(
        model=Path(arguments.model).name,
        dtype=arguments.dtype,
        batch=arguments.batch,
        rank=arguments.rank,
        context=context,
        adapter_bytes=adapter_bytes,
        threads=arguments.threads,
        repeats=arguments.repeats,
        machine=machine,
        points=[
            _point(count, seconds[count], arguments.batch, base_bytes + count * adapter_bytes, machine)
            for count in counts
        ],
    )


def _decode(runner: ModelRunner, versions: Sequence[str], arguments: argparse.Namespace) -> float:
    """Return the median seconds of a decode step of the whole batch, after its prompts and a few steps to warm up."""
    from engine.cache.blocks import BLOCK_SIZE
    from engine.plan import Row, StepPlan
    from engine.request import Request
    from engine.wire import SamplingParams

    generator = random.Random(0)
    requests = []
    for index in range(arguments.batch):
        prompt = [generator.randrange(3, runner.info.vocabulary) for _ in range(arguments.prompt_tokens)]
        request = Request(str(index), prompt, SamplingParams(temperature=0.0), arrival=0.0)
        request.adapter = versions[index % len(versions)] if versions else None
        length = -(-(len(prompt) + _WARM_STEPS + arguments.steps) // BLOCK_SIZE)
        request.block_table = list(range(index * length, (index + 1) * length))
        requests.append(request)
    times = []
    for _ in range(1 + _WARM_STEPS + arguments.steps):
        rows = [Row(request, request.computed, request.uncomputed, sample=True) for request in requests]
        begun = time.perf_counter()
        results = runner.launch(StepPlan(rows)).result()
        times.append(time.perf_counter() - begun)
        for request, result in zip(requests, results, strict=True):
            request.computed = request.length
            request.output += result.tokens
    for request in requests:
        runner.release(request)
    return statistics.median(times[1 + _WARM_STEPS :])


def _base_bytes(config: ModelConfig, tokens: int, size: int) -> int:
    """Return a step's bytes: a dense model's weights without the embedding, and the KV of `tokens` tokens."""
    head_dim, hidden = config.head_dim, config.hidden_size
    attention = hidden * head_dim * 2 * (config.heads + config.kv_heads)
    weights = config.layers * (attention + 3 * hidden * config.intermediate_size) + hidden * config.vocabulary
    return size * (weights + tokens * 2 * config.layers * config.kv_heads * head_dim)


def _point(adapters: int, seconds: Sequence[float], batch: int, step_bytes: int, machine: MachineLimits) -> Point:
    step = statistics.median(seconds)
    return Point(adapters, step, batch / step, step_bytes, step_bytes / machine.read_bandwidth)


def markdown(curve: Curve, environment: Environment) -> str:
    """Return the curve as a table, and the conditions."""
    base = curve.points[0].tokens_per_second
    lines = [
        f"### {curve.model}, {curve.dtype}: {curve.batch} requests decode, adapters of rank {curve.rank} on all linear "
        "layers",
        "",
        *table(
            "distinct adapters | output tokens/s | of the base's | step (ms) | read per step (MB) | roofline (ms)",
            (
                f"{point.adapters or 'none'} | {point.tokens_per_second:,.0f} | {point.tokens_per_second / base:.0%} | "
                f"{1e3 * point.step_seconds:.2f} | {point.step_bytes / 1e6:.1f} | {1e3 * point.roofline_seconds:.2f}"
                for point in curve.points
            ),
            words=0,
        ),
        "",
        f"- one adapter is {curve.adapter_bytes / 1e6:.2f} MB on the device; {curve.context} tokens of context",
        f"- {environment}, {curve.threads} of them used; measured around the runs: reading "
        f"{curve.machine.read_bandwidth / 1e9:.1f} GB/s; medians of {curve.repeats}",
        "",
    ]
    return "\n".join(lines)


def plot(curve: Curve, path: Path) -> None:
    """Plot throughput over distinct adapters, with the base's and the roofline's."""
    base, *points = curve.points
    counts = [point.adapters for point in points]
    with picture(path, figsize=(7, 4.2)) as axes:
        axes.plot(
            counts, [curve.batch / point.roofline_seconds for point in points], "--", color="#999", label="roofline"
        )
        axes.axhline(base.tokens_per_second, color="#4477aa", linestyle=":", label="base model, no adapters")
        axes.plot(counts, [point.tokens_per_second for point in points], "o-", color="#cc5544", label="measured")
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_yscale("log")
        axes.set_xlabel(f"distinct adapters among {curve.batch} requests (rank {curve.rank})")
        axes.set_ylabel("output tokens per second")
        axes.grid(alpha=0.3, which="both")
        axes.legend(frameon=False)


def _parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    parser.add_argument("--model", default="6M", help="shape of a random checkpoint, or directory of one")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64, help="requests that decode together")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="numbers of adapters")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60, help="decode steps of a run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--probe-bytes", type=int, default=1 << 29, help="bytes that the probe of the bandwidth reads")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--quick", action="store_true", help="a short run that shows that all works")
    return parser


if __name__ == "__main__":
    main()
