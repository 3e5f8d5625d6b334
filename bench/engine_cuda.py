"""The engine on a CUDA device, with the shapes of Llama 2: `python -m bench.engine --device cuda`.

7B and 13B in bf16 and 70B in int4, each alone, then all three at the same time as the pools of one gateway; beside
those in bf16 `generate` of transformers. Weights are random and made up on the device. The device's limits are measured
before and after, while nothing else runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch

from bench.cells import Cell
from bench.checkpoints import LLAMA_2, SHAPES, LlamaSizes, config_alone
from bench.kernel_sizes import CUDA, QUICK
from bench.kernels import measure_limits
from bench.measure import MachineLimits, mean, summarise
from bench.process import SubjectFailed, SubjectProcess
from bench.report import Environment, publish, table
from bench.subjects.interface import Precision, SubjectSetup
from bench.worker import RunCommand

OURS, PEER = "Roundhouse", "transformers generate"
ALONE, TOGETHER = "alone", "together"
CELLS = (
    Cell("1", 1),
    Cell("8", 8),
    Cell("32", 32),
    Cell("64", 64),
    Cell("prompts", 8, prompt_tokens=1920, new_tokens=16),
)
QUICK_CELLS = (Cell("1", 1, prompt_tokens=20, new_tokens=8), Cell("32", 3, prompt_tokens=20, new_tokens=8))
AT_ONCE = "32"
"""The cell that all models run at the same time."""
AIM = 0.8
"""Aim of the 7B shape with one request, as a share of the bandwidth roofline."""
_WARM_UP_TOKENS = 16
"""Tokens of a warm-up, enough for every step to have been recorded."""


class CudaModel(msgspec.Struct, frozen=True):
    name: str
    shape: LlamaSizes
    precision: Precision


MODELS = (
    CudaModel("7B", LLAMA_2["7B"], "bf16"),
    CudaModel("13B", LLAMA_2["13B"], "bf16"),
    CudaModel("70B", LLAMA_2["70B"], "int4"),
)
QUICK_MODELS = (CudaModel("mini", SHAPES["mini"], "bf16"), CudaModel("mini 4", SHAPES["mini"], "int4"))


class CudaRow(msgspec.Struct, frozen=True):
    """Results of one run. Times in seconds."""

    model: str
    precision: Precision
    cell: str
    subject: str
    company: str
    """Whether the model ran `ALONE` on the device, or `TOGETHER` with the others."""
    tokens_per_second: float
    ttft_p50: float
    ttft_p95: float
    itl_p50: float
    itl_p95: float
    roofline: float
    """Share of the decode roofline: the least time that a decode step needs, over the median ITL."""
    prefill: float
    """Share of the matmul limit while the prompts ran."""


class CudaFailure(msgspec.Struct, frozen=True):
    model: str
    subject: str
    company: str
    reason: str


class CudaResults(msgspec.Struct):
    environment: Environment
    device: str
    limits: MachineLimits
    rows: list[CudaRow]
    failures: list[CudaFailure]


class Measurements:
    """Runs subjects and collects their results."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._device = torch.device(arguments.device)
        self._cells = QUICK_CELLS if arguments.quick else CELLS
        self.models = QUICK_MODELS if arguments.quick else MODELS
        self.rows: list[CudaRow] = []
        self.failures: list[CudaFailure] = []
        self.limits = self._probe()

    def finish(self) -> CudaResults:
        self.limits = mean(self.limits, self._probe())
        name = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else "CPU"
        return CudaResults(Environment.here(), name, self.limits, self.rows, self.failures)

    def alone(self, model: CudaModel, subject: str) -> None:
        """Run all cells of one subject; the first failure ends it."""
        try:
            with self._process(model, subject) as process:
                process.loaded()
                for cell in self._cells:
                    self._measure(process, model, subject, cell, ALONE)
        except SubjectFailed as failure:
            self.failures.append(CudaFailure(model.name, subject, ALONE, str(failure)))

    def together(self) -> None:
        """Run one cell on all our models, which are loaded at the same time and begin together."""
        (cell,) = [each for each in self._cells if each.name == AT_ONCE]
        try:
            with ExitStack() as stack, ThreadPoolExecutor(len(self.models)) as pool:
                processes = [stack.enter_context(self._process(model, OURS)) for model in self.models]
                for process in processes:
                    process.loaded()
                done = [
                    pool.submit(self._measure, process, model, OURS, cell, TOGETHER)
                    for process, model in zip(processes, self.models, strict=True)
                ]
                for each in done:
                    each.result()
        except SubjectFailed as failure:
            self.failures.append(CudaFailure("all", OURS, TOGETHER, str(failure)))

    def _probe(self) -> MachineLimits:
        limits = measure_limits(self._device, QUICK if self._arguments.quick else CUDA)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # the subjects' now
        return MachineLimits(limits.bandwidth, limits.rates["bfloat16"])

    def _process(self, model: CudaModel, subject: str) -> SubjectProcess:
        setup = SubjectSetup(
            model=str(config_alone(model.name.replace(" ", "-"), model.shape, self._arguments.cache)),
            precision=model.precision,
            threads=self._arguments.threads,
            requests=max(cell.requests for cell in self._cells),
            tokens=max(cell.tokens for cell in self._cells),
            kv_dtype=self._arguments.kv_dtype if subject == OURS else "auto",
            device=self._arguments.device,
            random_weights=True,
        )
        return SubjectProcess(subject, setup, self._arguments.cache, self._arguments.limit)

    def _measure(self, process: SubjectProcess, model: CudaModel, subject: str, cell: Cell, company: str) -> None:
        batch = cell.batch(model.shape.vocab_size, 0)
        warm_up = msgspec.structs.replace(
            cell.batch(model.shape.vocab_size, ~0), new_tokens=min(_WARM_UP_TOKENS, cell.new_tokens)
        )
        traces = process.measure(RunCommand(batch, warm_up)).traces
        figures = summarise(traces, batch, model.shape, model.precision, self.limits)
        self.rows.append(CudaRow(model.name, model.precision, cell.name, subject, company, **figures))


def run(arguments: argparse.Namespace) -> None:
    """Run with options of `bench.engine`: device, quick, kv_dtype, threads, limit, cache, output."""
    measurements = Measurements(arguments)
    for model in measurements.models:
        for subject in (OURS, PEER):
            if subject == OURS or model.precision in ("bf16", "fp32"):
                measurements.alone(model, subject)
    measurements.together()
    results = measurements.finish()
    stem: Path = arguments.output / f"engine-{arguments.device.partition(':')[0]}{'-quick' if arguments.quick else ''}"
    publish(stem, markdown(results), results)


def markdown(results: CudaResults) -> str:
    limits, here = results.limits, results.environment
    lines = [
        "### The engine on CUDA",
        "",
        *table(
            "model | cell | subject | on the device | tokens/s | over transformers | TTFT p50, ms | ITL p50, ms | p95 "
            "| decode roofline | matmul limit for prompts",
            (_line(row, results.rows) for row in results.rows),
            words=4,
        ),
        "",
        f"- measured before and after: copying {limits.read_bandwidth / 1e9:,.0f} GB/s, products in bf16 "
        f"{limits.matmul / 1e12:,.1f} TFLOP/s",
        f"- aim: {AIM:.0%} of the decode roofline for 7B and one request; ahead of transformers in every cell",
        f"- {here.date}, revision {here.revision}, {results.device}, torch {here.torch}, transformers "
        f"{here.transformers}",
    ]
    lines += [f"- not measured: {one.model}, {one.subject}, {one.company}: {one.reason}" for one in results.failures]
    return "\n".join([*lines, ""])


def _line(row: CudaRow, rows: Sequence[CudaRow]) -> str:
    peers = [
        each.tokens_per_second
        for each in rows
        if each.subject == PEER and (each.model, each.precision, each.cell) == (row.model, row.precision, row.cell)
    ]
    ahead = f"{row.tokens_per_second / peers[0]:.2f}" if peers and row.subject == OURS and row.company == ALONE else ""
    return (
        f"{row.model} {row.precision} | {row.cell} | {row.subject} | {row.company} | {row.tokens_per_second:,.0f} | "
        f"{ahead} | {row.ttft_p50 * 1e3:,.1f} | {row.itl_p50 * 1e3:,.2f} | {row.itl_p95 * 1e3:,.2f} | "
        f"{row.roofline:.0%} | {row.prefill:.0%}"
    )
