"""Serves many registered adapters from one engine process, and the same traffic with one adapter and with none.

    python -m bench.adapter_scale             1,000 adapters of a model of 6 M parameters, 64 of them popular at a time
    python -m bench.adapter_scale --quick     a smoke run

Clients ask one after the other, each as soon as its last answer has ended. The adapter of a request is drawn from the
active ones with Zipf's weights; now and then an active one gives its place to one that nobody has asked for lately, so
that adapters have to be loaded all the time. Prompts are random and salted: nothing comes from the prefix cache. Times
are the client's; memory is the engine process's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from bench.checkpoints import directory_of
from bench.measure import ResidentMemory, prompts, quantile
from bench.report import Environment, options, publish, table
from bench.servers import engine_process
from engine.client.engine_client import EngineClient
from engine.client.generation import RequestFailed
from engine.wire import SamplingParams

_TRAFFIC = ("none", "one", "many")


class TrafficRun(msgspec.Struct, frozen=True):
    """Results of all requests of one kind of traffic. Times in seconds, memory in bytes."""

    traffic: str
    errors: int
    distinct: int
    """Number of different adapters that were requested."""
    loads: int
    evictions: int
    tokens_per_second: float
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    peak_memory: int
    """Most resident memory of the engine during the run; the next field is what is resident at its end."""
    end_memory: int


class Report(msgspec.Struct, frozen=True):
    """The conditions of a run, and its results."""

    model: str
    dtype: str
    adapters: int
    active: int
    rank: int
    zipf: float
    requests: int
    concurrency: int
    prompt_tokens: int
    new_tokens: int
    kv_tokens: int
    host_bytes: int
    start_memory: int
    """Resident memory of the engine before any request."""
    runs: list[TrafficRun]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    if arguments.quick:
        arguments.adapters, arguments.active, arguments.requests, arguments.concurrency = 12, 6, 40, 4
        arguments.prompt_tokens, arguments.new_tokens, arguments.repeats, arguments.kv_tokens = 8, 4, 1, 4096
        arguments.host_bytes = 4 << 20
    environment = Environment.here()
    with tempfile.TemporaryDirectory(prefix="rh-scale-") as folder:
        versions = _register(Path(folder), arguments)
        start, runs = asyncio.run(_measure(Path(folder), versions, arguments))
    fields = {name: getattr(arguments, name) for name in Report.__struct_fields__ if hasattr(arguments, name)}
    fields |= {"model": Path(arguments.model).name, "start_memory": start, "runs": runs}
    report = msgspec.convert(fields, Report)
    stem = arguments.output / f"adapter-scale-{report.model}-{report.dtype}"
    publish(stem, markdown(report, environment), {"environment": environment, "report": report})


def _register(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Register random adapters in a new registry; returns their versions."""
    from bench.random_adapters import write_adapter
    from engine.adapters.registry import AdapterRegistry

    registry, model = AdapterRegistry(str(folder / "registry")), directory_of(arguments.model)
    versions = []
    for seed in tqdm(range(arguments.adapters), unit="adapter", disable=None):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            written = write_adapter(Path(place) / "adapter", model, rank=arguments.rank, seed=seed)
            versions.append(registry.add(written, model).version)
    return versions


async def _measure(folder: Path, versions: list[str], arguments: argparse.Namespace) -> tuple[int, list[TrafficRun]]:
    """Run every kind of traffic `repeats` times, in an order that rotates."""
    runs = []
    address = f"unix://{folder}/socket"
    engine = engine_process(
        address,
        directory_of(arguments.model),
        threads=arguments.threads,
        dtype=arguments.dtype,
        adapters=folder / "registry",
        adapter_host_bytes=arguments.host_bytes,
        kv_tokens=arguments.kv_tokens,
        max_running=max(arguments.concurrency, 1),
    )
    async with engine as process, EngineClient(address) as client:
        memory = ResidentMemory(process.pid)
        await client.wait_connected()
        start = memory.now()
        with tqdm(total=arguments.repeats * len(_TRAFFIC) * arguments.requests, unit="request", disable=None) as bar:
            for turn in range(arguments.repeats):
                for kind in _TRAFFIC[turn % 3 :] + _TRAFFIC[: turn % 3]:
                    bar.set_postfix_str(f"adapters: {kind}")
                    chosen = _draw(kind, versions, arguments, seed=turn)
                    runs.append(await _run(client, memory, kind, chosen, f"{turn} {kind}".encode(), arguments, bar))
    return start, runs


def _draw(kind: str, versions: list[str], arguments: argparse.Namespace, *, seed: int) -> list[str | None]:
    """Draw the adapter of each request."""
    if kind == "none":
        return [None] * arguments.requests
    if kind == "one":
        return [versions[0]] * arguments.requests
    generator = random.Random(seed)
    shuffled = generator.sample(versions, len(versions))
    active, idle = shuffled[: arguments.active], shuffled[arguments.active :]
    weights = [1 / (rank + 1) ** arguments.zipf for rank in range(len(active))]
    chosen: list[str | None] = []
    for _ in range(arguments.requests):
        chosen += generator.choices(active, weights)
        if idle and generator.random() < arguments.turnover:
            place = generator.randrange(len(active))
            idle.append(active[place])
            active[place] = idle.pop(0)
    return chosen


async def _run(
    client: EngineClient,
    memory: ResidentMemory,
    kind: str,
    adapters: Sequence[str | None],
    salt: bytes,
    arguments: argparse.Namespace,
    bar: Any,
) -> TrafficRun:
    assert client.info is not None
    texts = prompts(len(adapters), arguments.prompt_tokens, client.info.vocabulary, seed=1)
    asked = iter(zip(texts, adapters, strict=True))
    sampling = SamplingParams(max_tokens=arguments.new_tokens, temperature=0.0, ignore_eos=True)
    firsts: list[float] = []
    gaps: list[float] = []
    errors = tokens = 0

    async def client_of_many() -> None:
        nonlocal errors, tokens
        for prompt, adapter in asked:
            begun = time.perf_counter()
            times: list[float] = []
            try:
                async for delta in client.generate(prompt, sampling, adapter=adapter, salt=salt):
                    times += [time.perf_counter()] * len(delta.token_ids)
            except RequestFailed as error:
                errors += 1
                tqdm.write(f"{adapter}: {error}", file=sys.stderr)
            if times:
                firsts.append(times[0] - begun)
                gaps.extend(later - earlier for earlier, later in pairwise(times))
            tokens += len(times)
            bar.update()

    before = client.load
    memory.reset_peak()
    begun = time.perf_counter()
    await asyncio.gather(*(client_of_many() for _ in range(arguments.concurrency)))
    elapsed = time.perf_counter() - begun
    after = client.load
    assert before is not None
    assert after is not None
    return TrafficRun(
        traffic=kind,
        errors=errors,
        distinct=len(set(adapters) - {None}),
        loads=after.adapter_loads - before.adapter_loads,
        evictions=after.adapter_evictions - before.adapter_evictions,
        tokens_per_second=tokens / elapsed,
        ttft_p50=quantile(firsts, 0.5),
        ttft_p99=quantile(firsts, 0.99),
        itl_p50=quantile(gaps, 0.5),
        peak_memory=memory.peak(),
        end_memory=memory.now(),
    )


def markdown(report: Report, environment: Environment) -> str:
    """Return a table with a row per kind of traffic, medians of the repeats, and the course of memory."""
    rows = []
    for traffic in _TRAFFIC:
        runs = [run for run in report.runs if run.traffic == traffic]

        def median(name: str, runs: list[TrafficRun] = runs) -> float:
            return float(statistics.median(getattr(run, name) for run in runs))

        rows.append(
            f"{traffic} | {median('distinct'):.0f} | {median('loads'):.0f} | {sum(run.errors for run in runs)} | "
            f"{median('tokens_per_second'):,.0f} | {1e3 * median('ttft_p50'):.0f} | {1e3 * median('ttft_p99'):.0f} | "
            f"{1e3 * median('itl_p50'):.1f} | {max(run.peak_memory for run in runs) / 1e6:,.0f}"
        )
    many = [run.end_memory / 1e6 for run in report.runs if run.traffic == "many"]
    lines = [
        f"### {report.model}, {report.dtype}: {report.adapters:,} registered adapters of rank {report.rank}, "
        f"{report.active} active",
        "",
        *table(
            "adapters in the traffic | asked for | loads | errors | output tokens/s | TTFT p50 (ms) | TTFT p99 (ms) | "
            "ITL p50 (ms) | peak memory (MB)",
            rows,
        ),
        "",
        f"- {report.concurrency} clients, {report.requests:,} requests per run, {report.prompt_tokens} tokens in and "
        f"{report.new_tokens} out; adapters by Zipf's law with exponent {report.zipf:g}",
        f"- {report.kv_tokens:,} tokens of KV and adapters; {report.host_bytes / 1e6:,.0f} MB for prepared adapters",
        f"- memory of the engine: {report.start_memory / 1e6:,.0f} MB before the first request, "
        f"{', '.join(f'{size:,.0f}' for size in many)} MB after the runs with many adapters",
        f"- {environment}; the client shares them",
        "",
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    parser.add_argument("--model", default="6M", help="shape of a random checkpoint, or directory of one")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--adapters", type=int, default=1000, help="number of registered adapters")
    parser.add_argument("--active", type=int, default=64, help="adapters that are popular at a time")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--zipf", type=float, default=1.0, help="exponent of the popularity of active ones")
    parser.add_argument("--turnover", type=float, default=0.2, help="chance per request that an active one is replaced")
    parser.add_argument("--requests", type=int, default=2000, help="requests of a run")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kv-tokens", type=int, default=65536)
    parser.add_argument("--host-bytes", type=int, default=128 << 20, help="host memory for prepared adapters")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads of the engine")
    parser.add_argument("--quick", action="store_true", help="a short run that shows that all works")
    return parser


if __name__ == "__main__":
    main()
