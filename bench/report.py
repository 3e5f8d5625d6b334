"""Results as a Markdown table, with what they were measured on."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import subprocess
from importlib.metadata import version
from pathlib import Path

import msgspec

from bench.checkpoints import Shape
from bench.measure import Measurement

_OURS = "Roundhouse"


class Environment(msgspec.Struct, frozen=True):
    """Where and when."""

    date: str
    cpu: str
    cores: int
    torch: str
    transformers: str
    revision: str
    """Of git; with a plus sign if files differ from it."""

    @classmethod
    def here(cls) -> Environment:
        return cls(
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            cpu=_cpu(),
            cores=os.cpu_count() or 1,
            torch=version("torch"),
            transformers=version("transformers"),
            revision=_revision(),
        )


class Table(msgspec.Struct, frozen=True):
    """All rows of one model, by concurrency and subject."""

    model: str
    shape: Shape
    dtype: str
    prompt_tokens: int
    new_tokens: int
    repeats: int
    rows: list[Measurement]
    same_tokens: list[float]
    """For each repeat and concurrency: the share of requests whose tokens all subjects agree on."""


def markdown(table: Table, environment: Environment) -> str:
    """The table, a line about the machine, and how far ahead we are of the better peer."""
    lines = [
        f"### {table.model}, {table.dtype}: {table.prompt_tokens} tokens in, {table.new_tokens} out, greedy",
        "",
        "| requests | subject | output tokens/s | TTFT p50 / p95 (ms) | ITL p50 / p95 (ms) | memory (MiB) "
        "| decode roofline | prefill limit |",
        "|--:|---|--:|--:|--:|--:|--:|--:|",
        *(_line(row) for row in table.rows),
        "",
        *(f"- {line}" for line in (*_ratios(table), _agreement(table), _machine(table, environment))),
        "",
    ]
    return "\n".join(lines)


def _line(row: Measurement) -> str:
    name = f"**{row.subject}**" if row.subject.startswith(_OURS) else row.subject
    cells = (
        str(row.concurrency),
        name,
        f"{row.tokens_per_second:,.0f}" if row.tokens_per_second >= 100 else f"{row.tokens_per_second:.1f}",
        f"{_ms(row.ttft_p50)} / {_ms(row.ttft_p95)}",
        f"{_ms(row.itl_p50)} / {_ms(row.itl_p95)}",
        f"{row.peak_memory / 2**20:,.0f}",
        f"{row.roofline:.0%}",
        f"{row.prefill:.0%}",
    )
    return f"| {' | '.join(cells)} |"


def _ms(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def _ratios(table: Table) -> list[str]:
    """Our throughput over the better peer's, per concurrency."""
    lines = []
    for number in sorted({row.concurrency for row in table.rows}):
        rows = [row for row in table.rows if row.concurrency == number]
        peers = [row.tokens_per_second for row in rows if not row.subject.startswith(_OURS)]
        for row in rows:
            if row.subject.startswith(_OURS) and peers:
                ratio = row.tokens_per_second / max(peers)
                lines.append(f"{row.subject} at {number}: {ratio:.2f} times the better peer's tokens/s")
    return lines


def _agreement(table: Table) -> str:
    share = statistics.fmean(table.same_tokens)
    if share == 1:
        return "every subject gave the same tokens for every request"
    return f"all subjects agree to the last token on {share:.0%} of the requests"


def _machine(table: Table, environment: Environment) -> str:
    bandwidths = [row.machine.read_bandwidth / 1e9 for row in table.rows]
    products = [row.machine.matmul / 1e12 for row in table.rows]
    return (
        f"{environment.date}, revision {environment.revision}, torch {environment.torch}, transformers "
        f"{environment.transformers}, {environment.cpu}, {environment.cores} cores; measured around the runs: reading "
        f"{min(bandwidths):.1f}-{max(bandwidths):.1f} GB/s, {table.dtype} products {min(products):.2f}-"
        f"{max(products):.2f} TFLOP/s; medians of {table.repeats}"
    )


def _cpu() -> str:
    """The model and the vector extensions that matter here."""
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return platform.processor() or platform.machine()
    fields: dict[str, str] = {}
    for line in information.read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    flags = fields.get("flags", "").split()
    known = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16", "avx512f": "AVX-512", "avx2": "AVX2"}
    extension = next((label for flag, label in known.items() if flag in flags), "")
    return f"{fields.get('model name', platform.machine())} {extension}".strip()


def _revision() -> str:
    root = Path(__file__).parent.parent
    try:
        revision = _git(root, "rev-parse", "--short", "HEAD")
        dirty = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return revision + ("+" if dirty else "")


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()
