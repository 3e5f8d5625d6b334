"""What a gateway adds to an answer: latency to the first token, and CPU per streamed turn, ours beside its peers.

    python -m bench.gateway                      all subjects, 1 to 256 clients; results in bench/results/gateway.*
    python -m bench.gateway --subject starlette --subject "roundhouse, socket" --quick

All stand in front of the same stub, which answers at once with 32 chunks: over HTTP for peers, in engine frames for us.
Ours has authentication, limits, exact cache and routing on, and Redis in a process of its own; every question is
new. Peers come from PyPI and npm, into folders of their own: bench/README.md says how. The latency added is what the
first token takes beyond the stub's own in the same run, without a gateway.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import track

from bench.gateway_report import FRAMES, KEY, STUB, SUBJECTS, GatewayRow, GatewaySubject, markdown, plot
from bench.load import LoadOutcome
from bench.measure import quantile
from bench.report import Environment, options, publish
from bench.servers import (
    LITELLM,
    PEERS,
    ROOT,
    free_port,
    gateway,
    listening,
    litellm,
    process,
    redis_server,
    shared_settings,
    wait_for,
)
from bench.stub import TIERS, WORD
from engine.text.processor import TextProcessor
from gateway.config.settings import DEMO

CHUNKS = 32
Started = contextlib.AbstractContextManager[tuple[int, int]]
"""A started server, as its port and the process whose CPU counts."""
_TICKS = os.sysconf("SC_CLK_TCK")

console = Console(stderr=True)


class GatewayStage:
    """The environment in which subjects run: ports, a folder, Redis and the stub."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.stub_port = free_port()
        token = TextProcessor.from_path(DEMO / "model").encode(WORD)[-1]
        stack.enter_context(redis_server(folder))
        stub = [sys.executable, "-m", "bench.stub", "--chunks", str(CHUNKS), "--http", str(self.stub_port)]
        stack.enter_context(process([*stub, "--frames", str(folder), "--token", str(token)]))
        wait_for(self.stub_port)

    @contextlib.contextmanager
    def run(self, subject: GatewaySubject) -> Iterator[tuple[int, list[int]]]:
        """Start a subject; gives its port and the processes whose CPU counts."""
        if subject.name in (STUB, FRAMES):
            yield self.stub_port, []
            return
        with getattr(self, f"_{subject.name.partition(',')[0]}")(subject) as (port, pid):
            yield port, [pid]

    def _starlette(self, _: GatewaySubject) -> Started:
        command = [sys.executable, "-m", "bench.echo", "--chunks", str(CHUNKS), "--port"]
        return listening(lambda port: [*command, str(port)])

    def _roundhouse(self, subject: GatewaySubject) -> Started:
        lines = ["[limits]\ninput_tokens_per_minute = 100000000\noutput_tokens_per_minute = 100000000"]
        for tier in TIERS:
            address = f"unix://{self.folder / tier}.sock"
            lines += ["[[pools]]", f'tier = "{tier}"', f'name = "stub-{tier}"', f'model = "{DEMO / "model"}"']
            lines += [f'engines = ["{address}"]']
        return gateway(self.folder, shared_settings(self.folder, KEY) + "\n".join(lines), subject.processes)

    def _litellm(self, _: GatewaySubject) -> Started:
        return litellm(self.folder, self.stub_port, KEY)

    def _portkey(self, _: GatewaySubject) -> Started:
        script = PEERS / "portkey" / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
        return listening(
            lambda port: ["node", str(script), f"--port={port}", "--headless"],
            {"TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost"},
        )


def installed(subject: GatewaySubject) -> bool:
    """Whether a peer is installed."""
    if subject.name == "litellm":
        return LITELLM.exists()
    if subject.name == "portkey":
        return shutil.which("node") is not None and (PEERS / "portkey" / "node_modules").exists()
    return True


def measure(
    stage: GatewayStage, subject: GatewaySubject, clients: Sequence[int], turns: int, rate: float | None = None
) -> Iterator[GatewayRow]:
    """Measure one process of the subject under all numbers of clients, after a warm-up."""
    with stage.run(subject) as (port, pids):
        headers = subject.headers
        if subject.name == "portkey":
            headers = (*headers, f"x-portkey-custom-host: http://127.0.0.1:{stage.stub_port}/v1")
        if subject.dialect == "frames":
            subject = msgspec.structs.replace(subject, path=str(stage.folder / "large.sock"))
        load(subject, headers, port, min(clients), max(20, turns // 10))
        for number in clients:
            before = cpu_seconds(pids)
            outcome = load(subject, headers, port, number, turns, rate)
            used = cpu_seconds(pids) - before
            yield summarise(subject, number, rate, outcome, used)


def summarise(
    subject: GatewaySubject, clients: int, rate: float | None, outcome: LoadOutcome, cpu: float
) -> GatewayRow:
    """Reduce what the clients saw to a row."""
    done = len(outcome.ttft)
    times = [1000 * each for each in outcome.ttft] or [float("nan")]
    each_turn = cpu / done if cpu and done else None
    return GatewayRow(
        subject=subject.name,
        clients=clients,
        rate=rate,
        ttft_p50=quantile(times, 0.5),
        ttft_p95=quantile(times, 0.95),
        ttft_p99=quantile(times, 0.99),
        turns_per_second=done / outcome.seconds,
        events_per_second=outcome.events / outcome.seconds,
        cpu_per_turn=None if each_turn is None else 1e3 * each_turn,
        cpu_per_chunk=None if each_turn is None else 1e6 * each_turn / CHUNKS,
        turns_per_core=done / cpu if cpu else None,
        errors=outcome.errors,
    )


def load(
    subject: GatewaySubject,
    headers: Sequence[str],
    port: int,
    clients: int,
    turns: int,
    rate: float | None = None,
    tokens: int = 64,
) -> LoadOutcome:
    """Run the clients in a process of their own. Args: tokens: most of an answer."""
    command = [sys.executable, "-m", "bench.load", "--dialect", subject.dialect, "--port", str(port)]
    command += ["--clients", str(clients), "--turns", str(turns), "--path", subject.path, "--model", subject.model]
    command += ["--chunks", str(CHUNKS), "--tokens", str(tokens), "--seed", str(secrets.randbits(32))]
    for header in headers:
        command += ["--header", header]
    if rate:
        command += ["--rate", str(rate)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    *notes, result = done.stdout.strip().splitlines()
    for note in notes:
        console.print(f"[yellow]{subject.name}: {note}")
    return msgspec.json.decode(result, type=LoadOutcome)


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the user and system time of processes and of all their living descendants."""
    children: dict[int, list[int]] = {}
    times: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            times[int(entry.name)] = int(fields[11]) + int(fields[12])
    waiting, total = list(pids), 0
    while waiting:
        pid = waiting.pop()
        total += times.get(pid, 0)
        waiting += children.get(pid, [])
    return total / _TICKS


def conditions() -> str:
    """Return one line with place, date and versions."""
    return f"- {Environment.here()}, which clients and stub share"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--subject", choices=list(SUBJECTS), action="append", help="repeatable; all by default")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--turns", type=int, default=3000, help="turns of a run")
    parser.add_argument("--slow-turns", type=int, default=400, help="turns of a run of litellm")
    parser.add_argument("--rate", type=float, help="turns per second (Poisson); without it as many as can be")
    parser.add_argument("--quick", action="store_true", help="a short run that shows that all works")
    arguments = parser.parse_args()
    names = arguments.subject or list(SUBJECTS)
    behind = {SUBJECTS[name].behind for name in names}
    names = [*(name for name in (STUB, FRAMES) if name in behind and name not in names), *names]
    clients, turns = ([1, 4], 60) if arguments.quick else (arguments.clients, arguments.turns)
    rows: list[GatewayRow] = []
    with contextlib.ExitStack() as stack:
        stage = GatewayStage(Path(stack.enter_context(tempfile.TemporaryDirectory())), stack)
        for name in track(names, description="subjects", console=console):
            subject = SUBJECTS[name]
            if not installed(subject):
                console.print(f"[yellow]{name} is not installed: bench/README.md says how")
                continue
            many = min(turns, arguments.slow_turns) if name == "litellm" else turns
            rows += measure(stage, subject, clients, many, arguments.rate)
    title = f"# Gateways, {CHUNKS} chunks a turn" + (f", {arguments.rate:g} turns/s" if arguments.rate else "")
    stem: Path = arguments.output / ("gateway" + ("-rate" if arguments.rate else ""))
    publish(stem, "\n".join([title, "", *markdown(rows), "", conditions()]) + "\n", rows)
    plot(rows, stem.with_suffix(".png"))


if __name__ == "__main__":
    main()
