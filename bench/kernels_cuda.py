"""The kernels on a CUDA device against its limits and torch: `python -m bench.kernels --device cuda`.

A figure is the time of one call among many that are recorded in a CUDA graph and replayed, so that it is the device's
alone. Inputs and weights are read from memory: calls go round as many copies as exceed its caches. The limits, what
copying within the device's memory and a square product reach, are measured in the same run.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch
import torch.nn.functional as F

import kernels
from bench.report import Environment
from kernels import library, reference
from kernels.registry import OPS, Cost

_WARM_UP = 3
_REPLAYS = 7
"""Of which the fastest counts."""


class Sizes(msgspec.Struct, frozen=True):
    """How large the inputs are."""

    tokens: int
    """Of a prompt's chunk."""
    cached: int
    """Bytes that inputs of all copies together exceed."""
    context: int
    probe_bytes: int
    probe_size: int
    """Rows and columns of the square product."""
    seconds: float
    """Of calls in a graph, about."""


FULL = Sizes(16384, 1 << 28, 4096, 1 << 30, 8192, 2e-3)
QUICK = Sizes(3, 1, 40, 1 << 16, 32, 0.0)
"""Shows that all works."""


class Case(msgspec.Struct, frozen=True):
    """One op at one size."""

    op: str
    shape: str
    cost: Cost
    calls: Sequence[Callable[[], object]]
    """The same work on other memory."""
    peers: Sequence[Callable[[], object]] = ()
    """The fastest way to the same result in torch."""
    aim: float | None = None
    """What the share of the limit should be."""


class Limits(msgspec.Struct, frozen=True):
    copy_bandwidth: float
    """Bytes read and written per second by a copy within the device's memory."""
    matmul: float
    """FLOP per second of a square product in bf16."""

    def least(self, cost: Cost) -> float:
        """Seconds that the device needs for that at the least."""
        return max(cost.bytes / self.copy_bandwidth, cost.flops / self.matmul)


class Row(msgspec.Struct, frozen=True):
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


class Bench:
    """Cases on one device."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self._device = device
        self._sizes = sizes

    def cases(self) -> dict[str, Callable[[], Iterator[Case]]]:
        return {
            "norm": self.norm,
            "activation": self.activation,
            "rotary": self.rotary,
            "attention": self.attention,
            "linear": self.linear,
            "sampling": self.sampling,
        }

    def _random(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, device=self._device).to(dtype)

    def _copies(self, size: int) -> range:
        """Numbers of as many copies of `size` bytes as the caches do not hold."""
        return range(max(1, -(-self._sizes.cached // size)))

    def norm(self) -> Iterator[Case]:
        tokens = self._sizes.tokens
        for width in (4096, 8192):
            weight, cost = self._random(width), OPS["rms_norm"].cost(tokens, width, 2)
            xs = [self._random(tokens, width) for _ in self._copies(cost.bytes)]
            ours = [partial(kernels.rms_norm, x, weight, 1e-5) for x in xs]
            theirs = [partial(F.rms_norm, x, (width,), weight, 1e-5) for x in xs]
            yield Case("rms_norm", f"{tokens} x {width}", cost, ours, theirs, 0.85)
            cost = OPS["add_rms_norm"].cost(tokens, width, 2)
            residual = self._random(tokens, width)
            ours = [partial(kernels.add_rms_norm, x, residual, weight, 1e-5) for x in xs]
            yield Case("add_rms_norm", f"{tokens} x {width}", cost, ours, (), 0.85)

    def activation(self) -> Iterator[Case]:
        tokens = self._sizes.tokens
        for width in (11008, 28672):
            cost = OPS["silu_and_mul"].cost(tokens, width, 2)
            xs = [self._random(tokens, 2 * width) for _ in self._copies(cost.bytes)]
            ours = [partial(kernels.silu_and_mul, x) for x in xs]
            theirs = [partial(reference.silu_and_mul, x) for x in xs]
            yield Case("silu_and_mul", f"{tokens} x {width}", cost, ours, theirs, 0.85)

    def _caches(
        self, blocks: int, kv_heads: int, dim: int, stored: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        """Keys and values as the engine lays them out, [blocks, 16, kv_heads, dim], and int8's scales."""
        shape = (blocks, kv_heads, 16, dim)
        pair = []
        for _ in range(2):
            if stored == torch.int8:
                numbers = torch.randint(-127, 128, shape, dtype=torch.int8, device=self._device)
            else:
                numbers = torch.randn(shape, device=self._device, dtype=torch.bfloat16).to(stored)
            pair.append(numbers.transpose(1, 2))
        scales = [torch.full(shape[:3], 0.02, device=self._device).transpose(1, 2) for _ in range(2)]
        return pair[0], pair[1], tuple(scales) if stored == torch.int8 else ()

    def rotary(self) -> Iterator[Case]:
        tokens, heads, dim = self._sizes.tokens, 32, 128
        for kv_heads in (32, 8):
            for name, stored in _STORED.items():
                keys, values, scales = self._caches(-(-tokens // 16), kv_heads, dim, stored)
                table = self._random(tokens, dim, dtype=torch.float32)
                places = torch.arange(tokens, device=self._device)
                cost = OPS["rope_and_store"].cost(tokens, heads, kv_heads, dim, 2)
                # Keys and values are written as they are stored, and scales with them.
                smaller = 2 * tokens * kv_heads * (dim * (2 - stored.itemsize) - (4 if scales else 0))
                cost = Cost(cost.bytes - smaller, cost.flops)
                calls = []
                for _ in self._copies(cost.bytes):
                    x = self._random(tokens, heads + 2 * kv_heads, dim)
                    query, key, value = torch.split(x, [heads, kv_heads, kv_heads], 1)
                    arguments = (query, key, value, table, places, keys, values, places, *scales)
                    calls.append(partial(kernels.rope_and_store, *arguments))
                shape = f"{tokens} x {heads}/{kv_heads} heads of {dim}"
                yield Case(f"rope_and_store {name}", shape, cost, calls, (), 0.85 if name == "bf16" else None)

    def attention(self) -> Iterator[Case]:
        """Decodes over 100 MB of keys and values and more, and prompts."""
        context = self._sizes.context
        shapes = [
            ("decode", 32, context, 1, 32, 8, 128),
            ("decode", 8, context, 1, 32, 32, 128),
            ("decode", 1, 16 * context, 1, 64, 8, 128),
            ("decode", 32, context, 1, 32, 8, 64),
            ("prompt", 1, context, context, 32, 8, 128),
        ]
        for kind, rows, length, count, heads, kv_heads, dim in shapes:
            for name, stored in _STORED.items():
                width = -(-length // 16)
                keys, values, scales = self._caches(rows * width + 3, kv_heads, dim, stored)
                order = np.random.default_rng(0).permutation(len(keys))[: rows * width]
                counts = np.full(rows, count, np.int32)
                plan = kernels.plan_attention(
                    np.full(rows, length - count, np.int32),
                    counts,
                    order.astype(np.int32).reshape(rows, width),
                    window=None,
                    device=self._device,
                )
                query = self._random(rows * count, heads, dim)
                starts = [length - count] * rows
                cost = OPS["paged_attention"].cost(
                    starts, counts.tolist(), heads, kv_heads, dim, 2, None, stored.itemsize
                )
                copies = range(1) if kind == "prompt" else self._copies(cost.bytes)
                calls = [partial(kernels.paged_attention, query, keys, values, plan, *scales)]
                for _ in copies[1:]:
                    keys, values, scales = self._caches(rows * width + 3, kv_heads, dim, stored)
                    calls.append(partial(kernels.paged_attention, query, keys, values, plan, *scales))
                peers = [self._torch_attention(query, rows, length, kv_heads) for _ in copies] if name == "bf16" else []
                shape = f"{kind} {rows} x {length}, {heads}/{kv_heads} heads of {dim}"
                yield Case(f"attention {name}", shape, cost, calls, peers, 0.85 if kind == "decode" else None)

    def _torch_attention(self, query: torch.Tensor, rows: int, length: int, kv_heads: int) -> Callable[[], object]:
        """torch's, over keys and values that lie side by side."""
        tokens, heads, dim = query.shape
        keys, values = (self._random(rows, kv_heads, length, dim) for _ in range(2))
        by_head = query.view(rows, tokens // rows, heads, dim).transpose(1, 2).contiguous()
        if tokens == rows:  # faster than enable_gqa: the heads that share keys become queries
            shared = by_head.view(rows, kv_heads, heads // kv_heads, dim)
            return partial(F.scaled_dot_product_attention, shared, keys, values)
        grouped = heads != kv_heads
        return partial(F.scaled_dot_product_attention, by_head, keys, values, is_causal=True, enable_gqa=grouped)

    def linear(self) -> Iterator[Case]:
        """The layers of the 7B and 70B shapes, quantised and as they are, beside torch's product in bf16."""
        shapes = [(12288, 4096), (22016, 4096), (4096, 11008), (10240, 8192), (57344, 8192), (8192, 28672)]
        if self._sizes is QUICK:
            shapes = [(48, 256)]
        for outputs, inputs in shapes:
            weight = self._random(outputs, inputs)
            plain = [weight] + [weight.clone() for _ in self._copies(weight.nbytes)[1:]]
            quantizations: tuple[kernels.Quantization | None, ...] = (None, "int8", "int4")
            for quantize in quantizations:
                packed = [kernels.pack_weight(weight, quantize)]
                for _ in self._copies(packed[0].data.nbytes)[1:]:
                    packed.append(dataclasses.replace(packed[0], data=packed[0].data.clone()))
                for rows in (1, 4, 16, 64, 512):
                    x = self._random(rows, inputs)
                    cost = (
                        OPS["linear"].cost(rows, outputs, inputs, 2)
                        if quantize is None
                        else OPS[f"linear_{quantize}"].cost(rows, outputs, inputs)
                    )
                    ours = [partial(kernels.linear, x, each) for each in packed]
                    theirs = [partial(F.linear, x, each) for each in plain]
                    aim = 0.7 if quantize == "int4" and rows <= 16 else None
                    name = {"int4": "W4A16", "int8": "W8A8", None: "bf16"}[quantize]
                    yield Case(f"linear {name}", f"{rows} x {inputs} -> {outputs}", cost, ours, theirs, aim)

    def sampling(self) -> Iterator[Case]:
        """From a step's logits to tokens."""
        rows, vocabulary = (64, 128256) if self._sizes is not QUICK else (3, 300)
        cost = OPS["sample"].cost(rows, vocabulary, 2)
        for name, draw in {"greedy": (0, 0, 1, 0), "all": (1, 0, 1, 0), "top-p 0.9": (1, 0, 0.9, 0)}.items():
            # On the device already: a graph cannot be told to copy other numbers.
            draws = torch.tensor([(*draw, 0.3)] * rows, dtype=torch.float64, device=self._device)
            logits = [4 * self._random(rows, vocabulary) for _ in self._copies(cost.bytes)]
            calls = [partial(kernels.sample, each, draws) for each in logits]
            yield Case(f"sample, {name}", f"{rows} x {vocabulary}", cost, calls)

    def limits(self) -> Limits:
        size = self._sizes.probe_size
        source = torch.ones(self._sizes.probe_bytes, dtype=torch.uint8, device=self._device)
        target, matrix = torch.empty_like(source), self._random(size, size)
        copying = self.time([partial(target.copy_, source)])
        return Limits(2 * len(source) / copying, 2 * size**3 / self.time([partial(torch.matmul, matrix, matrix)]))

    def measure(self, case: Case, limits: Limits) -> Row:
        ours = self.time(case.calls)
        theirs = self.time(case.peers) if case.peers else None
        share = limits.least(case.cost) / ours
        return Row(case.op, case.shape, ours, case.cost.bytes, case.cost.flops, share, theirs, case.aim)

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


_STORED = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


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


def markdown(rows: Sequence[Row], limits: Limits, environment: Environment, device: str, body: str) -> str:
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
    bench = Bench(device, QUICK if arguments.quick else FULL)
    cases = bench.cases()
    torch.manual_seed(0)
    limits = bench.limits()
    rows: list[Row] = []
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
    write(arguments.out / f"kernels-{device.type}{'-quick' if arguments.quick else ''}", text, rows, limits)
    print(text)


def write(stem: Path, text: str, rows: Sequence[Row], limits: Limits) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".md").write_text(text)
    encoded = msgspec.json.encode({"limits": limits, "rows": rows})
    stem.with_suffix(".json").write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
