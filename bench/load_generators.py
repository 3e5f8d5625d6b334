"""Two load generators, `roundhouse load` and guidellm, on one stub whose times are known: what each says of it.

    python -m bench.peers guidellm              once
    python -m bench.load_generators             results in bench/results/load.md

Both send the same number of chat completions per second, evenly, by turns. In the second part the stub is stopped for
a second during each run (SIGSTOP): what users would have waited is known.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bench.checkpoints import cache_folder
from bench.peers import python_of
from bench.report import Environment, options, publish, table
from bench.servers import ROOT, free_port, process, wait_for
from gateway.config.settings import DEMO
from load.report.document import LoadReport
from load.statistics import Quantiles

TTFT, ITL, CHUNKS = 0.2, 0.02, 32
"""Seconds before the stub's first chunk and between chunks, and the number of chunks."""
STALL = 1.0
TOLERANCE = 0.02
"""Share by which the two may differ."""
ROUNDHOUSE, GUIDELLM = "roundhouse load", "guidellm"

console = Console(stderr=True)


class GeneratorRow(msgspec.Struct, frozen=True):
    """What one generator says of the stub. Times in milliseconds."""

    generator: str
    stalled: bool
    turns: int
    ttft_mean: float
    ttft_p50: float
    ttft_p95: float
    ttft_max: float
    tpot_mean: float
    e2e_mean: float


def roundhouse(port: int, rate: float, seconds: float, folder: Path) -> GeneratorRow:
    """Run ours; times count from the intended starts."""
    command = [sys.executable, "-m", "load", f"http://127.0.0.1:{port}", "--model", "stub", "--arrivals", "constant"]
    command += ["--rate", f"{rate:g}", "--duration", f"{seconds:g}", "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    summary = msgspec.json.decode(done.stdout, type=LoadReport).run.summary
    assert summary.ttft is not None and summary.tpot is not None and summary.e2e is not None
    ttft = summary.ttft
    return GeneratorRow(
        generator=ROUNDHOUSE,
        stalled=False,
        turns=summary.turns,
        ttft_mean=1000 * ttft.mean,
        ttft_p50=1000 * ttft.p50,
        ttft_p95=1000 * ttft.p95,
        ttft_max=1000 * ttft.maximum,
        tpot_mean=1000 * summary.tpot.mean,
        e2e_mean=1000 * summary.e2e.mean,
    )


class _Distribution(msgspec.Struct):
    mean: float
    max: float
    count: int
    percentiles: dict[str, float]


class _Successful(msgspec.Struct):
    successful: _Distribution


class _Metrics(msgspec.Struct):
    request_latency: _Successful
    time_to_first_token_ms: _Successful
    inter_token_latency_ms: _Successful


class _Benchmark(msgspec.Struct):
    metrics: _Metrics


class _GuidellmReport(msgspec.Struct):
    benchmarks: list[_Benchmark]


def guidellm(port: int, rate: float, seconds: float, folder: Path) -> GeneratorRow:
    """Run guidellm; its times count from when a request is sent, and its ITL is what others call TPOT."""
    python = python_of("guidellm", cache_folder())
    assert python is not None
    report = folder / "guidellm.json"
    command = [str(python), "-m", "guidellm", "run", "--disable-console"]
    # The stub has no page that says whether it is well.
    command += ["--backend", f"kind=openai_http,target=http://127.0.0.1:{port},model=stub,validate_backend=false"]
    command += ["--profile", f"kind=constant,rate={rate:g}"]
    command += ["--constraint", f"kind=max_requests,count={round(rate * seconds)}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={CHUNKS}"]
    command += ["--tokenizer", f"kind=hf_auto,model={DEMO / 'model'}", "--output", f"kind=json,path={report}"]
    subprocess.run(
        command, cwd=folder, stdout=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True
    )
    [benchmark] = msgspec.json.decode(report.read_bytes(), type=_GuidellmReport).benchmarks
    metrics = benchmark.metrics
    ttft = metrics.time_to_first_token_ms.successful
    return GeneratorRow(
        generator=GUIDELLM,
        stalled=False,
        turns=ttft.count,
        ttft_mean=ttft.mean,
        ttft_p50=ttft.percentiles["p50"],
        ttft_p95=ttft.percentiles["p95"],
        ttft_max=ttft.max,
        tpot_mean=metrics.inter_token_latency_ms.successful.mean,
        e2e_mean=1000 * metrics.request_latency.successful.mean,
    )


@contextlib.contextmanager
def stalling(pid: int, port: int, after: float) -> Iterator[None]:
    """Stop a process for `STALL` seconds, `after` seconds after something has begun to use its port."""

    def stall() -> None:
        while not _connections(port):
            time.sleep(0.01)
        time.sleep(after)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STALL)
        os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stall)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _connections(port: int) -> int:
    """Return how many connections of clients to a local port are established."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(fields[2].endswith(f":{port:04X}") and fields[3] == "01" for fields in map(str.split, lines))


def expected(rate: float, turns: int) -> GeneratorRow:
    """Return what users of the stub see when it is stopped once, a third of the way, between two turns.

    A turn that is due in the stop begins at its end; chunks that are due in the stop come at its end.
    """
    stop = (turns // 3 + 0.5) / rate

    def happens(due: float) -> float:
        return stop + STALL if stop <= due < stop + STALL else due

    ttft, tpot, e2e = [], [], []
    for number in range(turns):
        due = number / rate
        begun = happens(due)
        first, last = happens(begun + TTFT), happens(begun + TTFT + (CHUNKS - 1) * ITL)
        ttft.append(first - due)
        tpot.append((last - first) / (CHUNKS - 1))
        e2e.append(last - due)
    found = Quantiles.of(ttft)
    assert found is not None
    return GeneratorRow(
        generator="what there is to see",
        stalled=True,
        turns=turns,
        ttft_mean=1000 * found.mean,
        ttft_p50=1000 * found.p50,
        ttft_p95=1000 * found.p95,
        ttft_max=1000 * found.maximum,
        tpot_mean=1000 * statistics.fmean(tpot),
        e2e_mean=1000 * statistics.fmean(e2e),
    )


def measure(rate: float, seconds: float, repeats: int, stalled: bool) -> list[GeneratorRow]:
    """Run both by turns, and return the medians of each."""
    generators: Sequence[Callable[[int, float, float, Path], GeneratorRow]] = (roundhouse, guidellm)
    runs: dict[str, list[GeneratorRow]] = {ROUNDHOUSE: [], GUIDELLM: []}
    with tempfile.TemporaryDirectory(prefix="rh-load-") as name:
        port, folder = free_port(), Path(name)
        stub = [sys.executable, "-m", "bench.stub", "--chunks", str(CHUNKS), "--http", str(port), "--frames", name]
        with process([*stub, "--token", "0", "--ttft", f"{TTFT:g}", "--itl", f"{ITL:g}"]) as running:
            wait_for(port)
            for repeat in range(repeats):
                for generate in generators:
                    console.print(f"{generate.__name__}, {'stalled' if stalled else 'steady'}, {repeat + 1} ...")
                    # A third of the way: both have begun by then, and there is time to recover.
                    with stalling(running.pid, port, seconds / 3) if stalled else contextlib.nullcontext():
                        row = generate(port, rate, seconds, folder)
                    runs[row.generator].append(msgspec.structs.replace(row, stalled=stalled))
    return [median(rows) for rows in runs.values()]


def median(rows: Sequence[GeneratorRow]) -> GeneratorRow:
    figures = [name for name in GeneratorRow.__struct_fields__ if name not in ("generator", "stalled", "turns")]
    values = {name: statistics.median(getattr(row, name) for row in rows) for name in figures}
    return msgspec.structs.replace(rows[0], **values)


def difference(ours: GeneratorRow, theirs: GeneratorRow) -> float:
    """Return the largest share by which two differ, of means and of the median TTFT."""
    names = ("ttft_mean", "ttft_p50", "tpot_mean", "e2e_mean")
    shares: list[float] = [abs(getattr(ours, name) / getattr(theirs, name) - 1) for name in names]
    return max(shares)


def markdown(rows: Sequence[GeneratorRow]) -> list[str]:
    """Return a table in milliseconds."""
    return table(
        "generator | turns | TTFT mean | p50 | p95 | max | TPOT mean | E2E mean",
        (
            f"{row.generator} | {row.turns} | {row.ttft_mean:.1f} | {row.ttft_p50:.1f} | {row.ttft_p95:.1f} | "
            f"{row.ttft_max:.0f} | {row.tpot_mean:.2f} | {row.e2e_mean:.1f}"
            for row in rows
        ),
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rate", type=float, default=20.0, help="turns per second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a run")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if python_of("guidellm", cache_folder()) is None:
        raise SystemExit("guidellm is not set up: python -m bench.peers guidellm")
    steady = measure(arguments.rate, arguments.seconds, arguments.repeats, stalled=False)
    stalled = measure(arguments.rate, arguments.seconds, arguments.repeats, stalled=True)
    known = expected(arguments.rate, steady[0].turns)
    lines = [
        "# Load generators on one stub",
        "",
        f"- {Environment.here()}",
        f"- {arguments.rate:g} chat completions per second for {arguments.seconds:g} s, medians of {arguments.repeats} "
        f"runs by turns; the stub sends {CHUNKS} chunks, the first after {1000 * TTFT:g} ms, the next every "
        f"{1000 * ITL:g} ms: E2E {1000 * (TTFT + (CHUNKS - 1) * ITL):g} ms. All in milliseconds.",
        f"- the two differ by {100 * difference(*steady):.2f} % at most (aim: {100 * TOLERANCE:g} %)",
        "",
        *markdown(steady),
        "",
        f"Stopped once for {STALL:g} s: ours differs by {100 * difference(stalled[0], known):.2f} % at most from what "
        f"users would have seen, guidellm by {100 * difference(stalled[1], known):.2f} %.",
        "",
        *markdown([known, *stalled]),
    ]
    publish(arguments.output / "load", "\n".join(lines) + "\n", [*steady, known, *stalled])


if __name__ == "__main__":
    main()
