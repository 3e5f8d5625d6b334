"""The record of a run of `bench.real`, and what it computes from timed tokens."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.measure import MachineLimits
from bench.real_cells import RealCell
from bench.report import Environment
from bench.subjects.interface import Trace
from engine.checkpoint.opening import open_checkpoint

_KV_BYTES = 2
_EMBEDDING = "model.embed_tokens.weight"


class ModelSizes(msgspec.Struct, frozen=True):
    """What a file's arithmetic costs."""

    file_bytes: int
    read_bytes: int
    """Bytes of the weights that each decode step reads as they are stored: all but an embedding that is not the head's
    too, and is read row by row."""
    parameters: int
    """Number of these weights."""
    head: int
    """Number of the head's weights, which prompts need for their last token only."""
    kv_bytes: int
    """Bytes of keys and values per token, in 16 bits."""
    vocabulary: int

    @classmethod
    def of(cls, path: Path) -> ModelSizes:
        """Read a file's headers."""
        checkpoint = open_checkpoint(path)
        config = checkpoint.config
        read = [each for each in checkpoint.tensors() if config.tied_embeddings or each.name != _EMBEDDING]
        return cls(
            file_bytes=checkpoint.weight_bytes,
            read_bytes=sum(each.data.nbytes for each in read),
            parameters=sum(math.prod(each.shape) for each in read if len(each.shape) > 1),
            head=config.vocabulary * config.hidden_size,
            kv_bytes=_KV_BYTES * 2 * config.layers * config.kv_heads * config.head_dim,
            vocabulary=config.vocabulary,
        )

    def step_seconds(self, requests: int, context: float, machine: MachineLimits) -> float:
        """Return the least time of a decode step: reading weights and KV cache once, or the products."""
        read = (self.read_bytes + requests * context * self.kv_bytes) / machine.read_bandwidth
        return max(read, 2 * self.parameters * requests / machine.matmul)

    def prompt_seconds(self, tokens: int, context: float, machine: MachineLimits) -> float:
        """Return the least time to the first token of `tokens` new tokens behind a context of `context`."""
        products = 2 * ((self.parameters - self.head) * tokens + self.head) / machine.matmul
        return max(products, (self.read_bytes + context * self.kv_bytes) / machine.read_bandwidth)


class RealRow(msgspec.Struct, frozen=True):
    """One subject in one cell; medians over repeats."""

    file: str
    subject: str
    cell: str
    value: float
    """The figure that the cell's quantity names."""
    limit: float
    """Share of what the machine allows; 0 for the start of a process."""
    ttft: float
    """Median seconds to the first token."""
    load: float
    """Seconds until the model was ready; of a server from the start of its process."""
    resident: int
    """Most bytes resident in the subject's processes, everything included."""
    machine: MachineLimits


class RealFailure(msgspec.Struct, frozen=True):
    file: str
    subject: str
    cell: str
    words: str


class RealResults(msgspec.Struct, frozen=True):
    environment: Environment
    isa: str
    """Instruction set of our kernels."""
    threads: int
    repeats: int
    shared: bool
    """Whether other programs ran at the same time."""
    sizes: dict[str, ModelSizes]
    kv_bytes: dict[str, int]
    """Bytes of the KV cache that the cells with up to 32 requests need, by file."""
    rows: list[RealRow]
    failures: list[RealFailure]
    missing: list[str]
    """Subjects that are not set up."""

    def row(self, file: str, subject: str, cell: str) -> RealRow | None:
        key = file, subject, cell
        return next((row for row in self.rows if (row.file, row.subject, row.cell) == key), None)


def figures(
    cell: RealCell, traces: Sequence[Trace], load: float, sizes: ModelSizes, machine: MachineLimits
) -> tuple[float, float, float]:
    """Return a cell's value, its share of the limit, and the median seconds to the first token."""
    ttft = statistics.median(trace.times[0] for trace in traces)
    if cell.quantity == "start":
        return load + ttft, 0.0, ttft
    if cell.quantity in ("prompt", "turn"):
        least = sizes.prompt_seconds(cell.prompt_tokens, cell.cached_tokens, machine)
        return cell.prompt_tokens / ttft if cell.quantity == "prompt" else ttft, least / ttft, ttft
    begun, ended = max(trace.times[0] for trace in traces), max(trace.times[-1] for trace in traces)
    if ended == begun:  # a server may send all tokens of a tiny model at once
        begun = 0.0
    rate = sum(moment > begun for trace in traces for moment in trace.times) / (ended - begun)
    least = sizes.step_seconds(cell.requests, cell.prompt_tokens + cell.new_tokens / 2, machine)
    return rate, least * rate / cell.requests, ttft


def median(runs: Sequence[RealRow]) -> RealRow:
    """Return the median of every figure over repeats."""
    names = ("value", "limit", "ttft", "load", "resident")
    machine = MachineLimits(
        statistics.median(run.machine.read_bandwidth for run in runs),
        statistics.median(run.machine.matmul for run in runs),
    )
    values = {name: statistics.median(getattr(run, name) for run in runs) for name in names}
    values["resident"] = int(values["resident"])
    return msgspec.structs.replace(runs[0], **values, machine=machine)
