"""What a gateway adds in front of llama.cpp's server: ours beside LiteLLM's proxy, in one run.

    python -m bench.upstreams --model qwen.gguf       results in bench/results/upstreams.*

The server, a gateway process, Redis and LiteLLM's proxy are real, and stay up for the whole run. In each round all ways
are asked in turn, by one client and by several that are always busy; which way is first rotates. Answers are short,
because the server takes longer for a token than a gateway does. What a way adds is compared with the server asked
directly in the same round. Ours has authentication and limits on, and finds every question new in its cache; LiteLLM is
set up as bench/README.md says.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

import httpx2
import msgspec
from rich.console import Console

from bench.gateway import cpu_seconds, load
from bench.gateway_report import KEY, GatewaySubject
from bench.load import LoadOutcome
from bench.measure import quantile
from bench.report import Environment, options, publish, table
from bench.servers import LITELLM, gateway, listening, litellm, redis_server, shared_settings
from bench.xllamacpp_server import CONTEXT, SLOTS
from gateway.models.catalogue import catalogue
from gateway.models.store import ModelStore, default_folder

WAYS = DIRECT, TOKENS, MESSAGES, LITELLM_PROXY = (
    "llama.cpp, directly",
    "Roundhouse, the server continues tokens",
    "Roundhouse, the server takes messages",
    "LiteLLM",
)
CLIENTS = (1, SLOTS)
WARM_UP = 4
"""Answers of each way before it is measured."""
PATIENCE = 120.0

console = Console(stderr=True)


class Way(msgspec.Struct, frozen=True):
    """A way to ask the server."""

    subject: GatewaySubject
    port: int
    pids: Sequence[int] = ()
    """Processes whose CPU counts."""

    def load(self, clients: int, answers: int, tokens: int) -> LoadOutcome:
        return load(self.subject, self.subject.headers, self.port, clients, answers, tokens=tokens)


class UpstreamRun(msgspec.Struct, frozen=True):
    """What the clients of one way saw in one round."""

    way: str
    clients: int
    ttft: list[float]
    """Milliseconds, as those of whole answers are."""
    whole: list[float]
    cpu: float
    """Seconds of all its processes."""
    errors: int


class Timing(msgspec.Struct, frozen=True):
    """Milliseconds of all answers of one way."""

    p50: float
    p95: float
    added: list[float]
    """By how much the median of each round exceeds that without a gateway; nothing of the server alone."""


class UpstreamRow(msgspec.Struct, frozen=True):
    """One way with so many clients."""

    way: str
    clients: int
    answers: int
    ttft: Timing
    whole: Timing
    cpu_per_answer: float | None
    """Milliseconds; None of the server alone, whose own is not measured."""
    errors: int


@contextlib.contextmanager
def staged(model: Path) -> Iterator[list[Way]]:
    """Start all there is."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-upstreams-")))
        command = [sys.executable, "-m", "bench.xllamacpp_server", str(model)]
        # The model's own template, which our gateway has of the same file: all ways send the server the same prompt.
        server, _ = stack.enter_context(
            listening(lambda port: [*command, str(port), "--own-template"], ready="/health")
        )
        address = f"http://127.0.0.1:{server}"
        served = httpx2.get(f"{address}/v1/models", timeout=PATIENCE).json()["data"][0]["id"]
        lines = ["[limits]\ninput_tokens_per_minute = 100000000\noutput_tokens_per_minute = 100000000"]
        lines += [f'[[pools]]\ntier = "small"\nname = "tokens"\nmodel = "{model}"\ndialect = "llama.cpp"']
        lines += [f'engines = ["{address}"]']
        lines += [f'[[pools]]\ntier = "large"\nname = "messages"\nmodel = "{served}"\ndialect = "openai"']
        lines += [f'context = {CONTEXT}\nengines = ["{address}"]']
        stack.enter_context(redis_server(folder))
        ours, pid = stack.enter_context(gateway(folder, shared_settings(folder, KEY) + "\n".join(lines)))
        # It closes its connections after each streamed answer, whether it says so or not.
        ways = [Way(GatewaySubject(DIRECT, "chat", headers=("Connection: close",)), server)]
        key = (f"Authorization: Bearer {KEY}",)
        ways += [Way(GatewaySubject(TOKENS, "chat", headers=key, model="tokens"), ours, [pid])]
        ways += [Way(GatewaySubject(MESSAGES, "chat", headers=key, model="messages"), ours, [pid])]
        if LITELLM.exists():
            port, pid = stack.enter_context(litellm(folder, server, KEY))
            ways += [
                Way(GatewaySubject(LITELLM_PROXY, "chat", headers=(f"Authorization: Bearer sk-{KEY}",)), port, [pid])
            ]
        else:
            console.print("[yellow]litellm is not installed: bench/README.md says how")
        yield ways


def tokens_in(way: Way, tokens: int) -> int:
    """Ask one question that is the same for all; returns the tokens of its prompt.

    Raises:
        RuntimeError: the answer is shorter than those that are measured should be.
    """
    question = {"role": "user", "content": "What is 123456789 and why does it matter?"}
    body = {"model": way.subject.model, "messages": [question], "max_tokens": tokens, "temperature": 0}
    headers = dict(each.split(": ", 1) for each in way.subject.headers)
    url = f"http://127.0.0.1:{way.port}{way.subject.path}"
    answer = httpx2.post(url, json=body, headers=headers, timeout=PATIENCE)
    usage = answer.raise_for_status().json()["usage"]
    if usage["completion_tokens"] != tokens:
        raise RuntimeError(f"{way.subject.name} answered with {usage['completion_tokens']} tokens instead of {tokens}")
    return int(usage["prompt_tokens"])


def measure(ways: Sequence[Way], rounds: int, answers: int, tokens: int) -> Iterator[UpstreamRun]:
    """Ask all ways in turn, round after round."""
    for way in ways:
        way.load(1, WARM_UP, tokens)
    for number in range(rounds):
        first = number % len(ways)
        for clients in CLIENTS:
            for way in [*ways[first:], *ways[:first]]:
                before = cpu_seconds(way.pids)
                outcome = way.load(clients, answers, tokens)
                if not outcome.ttft:
                    raise RuntimeError(f"{way.subject.name} gave no answer")
                used = cpu_seconds(way.pids) - before
                ttft, whole = ([1000 * each for each in times] for times in (outcome.ttft, outcome.whole))
                yield UpstreamRun(way.subject.name, clients, ttft, whole, used, outcome.errors)
        console.print(f"round {number + 1} of {rounds}")


def summarise(runs: Sequence[UpstreamRun]) -> list[UpstreamRow]:
    """Reduce the runs, which come in the order of their rounds, to a row for each way and number of clients."""
    places: dict[tuple[int, str], list[UpstreamRun]] = {}
    for run in runs:
        places.setdefault((run.clients, run.way), []).append(run)
    found = []
    for (clients, way), mine in sorted(places.items(), key=lambda place: (place[0][0], WAYS.index(place[0][1]))):
        direct = [] if way == DIRECT else places[clients, DIRECT]
        answers = sum(len(run.whole) for run in mine)
        row = UpstreamRow(
            way=way,
            clients=clients,
            answers=answers,
            ttft=timing([run.ttft for run in mine], [run.ttft for run in direct]),
            whole=timing([run.whole for run in mine], [run.whole for run in direct]),
            cpu_per_answer=1000 * sum(run.cpu for run in mine) / answers if direct else None,
            errors=sum(run.errors for run in mine),
        )
        found.append(row)
    return found


def timing(rounds: Sequence[Sequence[float]], direct: Sequence[Sequence[float]]) -> Timing:
    """Args: direct: the times of the same rounds without a gateway; empty if these are they."""
    times = [each for one in rounds for each in one]
    added = [median(one) - median(base) for one, base in zip(rounds, direct, strict=True)] if direct else []
    return Timing(quantile(times, 0.5), quantile(times, 0.95), added)


def markdown(rows: Sequence[UpstreamRow], head: Sequence[str]) -> str:
    """Return the page."""
    lines = [
        f"{row.clients} | {f'**{row.way}**' if row.way.startswith('Roundhouse') else row.way} | "
        f"{row.ttft.p50:.1f} / {row.ttft.p95:.1f} | {_added(row.ttft)} | {row.whole.p50:.0f} / {row.whole.p95:.0f} | "
        f"{_added(row.whole)} | {'' if row.cpu_per_answer is None else f'{row.cpu_per_answer:.1f}'} | "
        f"{row.answers} | {row.errors}"
        for row in rows
    ]
    header = "clients | way | first token p50 / p95 (ms) | added (ms) | whole answer p50 / p95 (ms) | added (ms) | "
    header += "CPU per answer (ms) | answers | errors"
    return "\n".join(["# Gateways in front of llama.cpp's server", "", *head, "", *table(header, lines, words=2), ""])


def _added(timing: Timing) -> str:
    """Return the median over the rounds, and the range."""
    if not timing.added:
        return ""
    return f"{median(timing.added):.1f} ({min(timing.added):.1f} to {max(timing.added):.1f})"


def conditions(model: Path, prompt: int, tokens: int, rounds: int, *, shared: bool) -> list[str]:
    """Return what the figures are of."""
    other = " **Other programs ran at the same time.**" if shared else ""
    return [
        f"- {Environment.here()}, which the server, gateways and clients share.{other}",
        f"- {model.name}, one thread, {SLOTS} requests at a time; llama.cpp of xllamacpp {version('xllamacpp')}, "
        f"LiteLLM {_litellm_version()}",
        f"- About {prompt} tokens in, new in each question, and {tokens} out; {rounds} rounds, in each of which all "
        "ways are asked in turn",
        "- Added: the median of a round less that of the server asked directly in the same round; the median of all "
        "rounds, and the least and the most",
        "- CPU: of all processes of the gateway while it was asked, so also what it does when nobody asks",
    ]


def _litellm_version() -> str:
    if not LITELLM.exists():
        return "is not installed"
    code = "from importlib.metadata import version; print(version('litellm'))"
    return subprocess.run(
        [LITELLM.with_name("python"), "-c", code], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF file; the catalogue's smallest model unless given")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--answers", type=int, default=16, help="answers of each way in a round, for each number of clients"
    )
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--shared", action="store_true", help="say in the results that other programs were running")
    chosen = parser.parse_args()
    model = chosen.model or ModelStore(default_folder()).path(min(catalogue(), key=lambda each: each.bytes))
    with staged(model) as ways:
        prompts = {way.subject.name: tokens_in(way, chosen.tokens) for way in ways}
        if len(set(prompts.values())) > 1:
            raise RuntimeError(f"the server gets prompts of different lengths: {prompts}")
        runs = list(measure(ways, chosen.rounds, chosen.answers, chosen.tokens))
    head = conditions(model, prompts[DIRECT], chosen.tokens, chosen.rounds, shared=chosen.shared)
    rows = summarise(runs)
    publish(chosen.output / "upstreams", markdown(rows, head), {"environment": Environment.here(), "rows": rows})


if __name__ == "__main__":
    main()
