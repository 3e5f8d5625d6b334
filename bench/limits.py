"""How far fifty clients at once get beyond a limit of tokens per minute, ours beside LiteLLM's proxy.

    python -m bench.limits                results in bench/results/limits.md
    python -m bench.limits --seconds 3

Every client asks again as soon as it has an answer, and rests a moment after a refusal. All answers have 32 tokens and
take a fifth of a second, from an upstream of the bench. Clients name their output limit, or leave it out. What was
delivered is compared with what the limit allows: its tokens, and for ours, which drains steadily, what drained then.
LiteLLM counts in windows of a minute, of which a run is a part; its key gets its limit from a custom authentication, so
that no database is needed, and it runs as one process that counts in memory. The upstream reports no prompt tokens, so
that its totals are output tokens.

It also measures the script in Redis: microseconds of Redis' own time for a reservation and a settlement.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2
import msgspec
import redis
import uvicorn
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed

from bench.gateway import conditions
from bench.gateway_report import KEY
from bench.report import options, publish, table
from bench.servers import LITELLM, free_port, gateway, litellm, process, redis_server, shared_settings, wait_for
from bench.stub import WORD
from engine.text.processor import TextProcessor
from engine.wire import PROTOCOL_VERSION, Generate, Load, ModelInfo, Output, Ready, Step, Usage
from engine.wire import decode_client_frame as decode
from engine.wire import encode as frame
from gateway.config.settings import DEMO
from gateway.limits.script import SCRIPT, arguments, keys
from gateway.records.quota import Amounts, LimitSubject, Quota

SUBJECTS = ("roundhouse", "litellm")
TOKENS = 32
DELAY = 0.2
"""Seconds that an answer takes."""
REST = 0.05
MODEL = DEMO / "model"
_IDLE = Load(0, 0, 0, 1024, 1024, 0, 0, 0, 0, 0, 0.0)

console = Console(stderr=True)


class LimitsOutcome(msgspec.Struct):
    """What the clients of one run received."""

    subject: str
    named: bool
    """Whether clients named their output limit."""
    allowed: int = 0
    delivered: int = 0
    """Output tokens that were delivered."""
    refused: int = 0
    failed: int = 0

    @property
    def overshoot(self) -> int:
        return max(0, self.delivered - self.allowed)


async def complete(request: Request) -> Response:
    """Answer as the upstream of HTTP gateways."""
    await asyncio.sleep(DELAY)
    usage = {"prompt_tokens": 0, "completion_tokens": TOKENS, "total_tokens": TOKENS}
    choice = {"index": 0, "message": {"role": "assistant", "content": WORD * TOKENS}, "finish_reason": "stop"}
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice], "usage": usage}
    return JSONResponse(body)


async def generate(connection: ServerConnection) -> None:
    """Answer as the upstream of our gateway: an engine whose answers come whole."""
    token = TextProcessor.from_path(MODEL).encode(WORD)[-1]
    await connection.send(frame(Ready(PROTOCOL_VERSION, ModelInfo("s", "s", 2048, 4096, (2,), 16, "cpu", "f"), _IDLE)))
    answering: set[asyncio.Task[None]] = set()

    async def answer(request: Generate) -> None:
        await asyncio.sleep(DELAY)
        usage = Usage(len(request.prompt), 0, TOKENS, 0.0)
        with contextlib.suppress(ConnectionClosed):
            await connection.send(
                frame(Step([Output(request.id, [token] * TOKENS, finish="length", usage=usage)], _IDLE))
            )

    with contextlib.suppress(ConnectionClosed):
        async for message in connection:
            assert isinstance(message, bytes)
            if isinstance(request := decode(message), Generate):
                task = asyncio.create_task(answer(request))
                answering.add(task)
                task.add_done_callback(answering.discard)


async def serve_upstream(port: int, path: str) -> None:
    """Serve both upstreams, until the process is ended."""
    application = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
    config = uvicorn.Config(application, port=port, log_level="warning", access_log=False)
    async with unix_serve(generate, path, compression=None, ping_interval=None):
        await uvicorn.Server(config).serve()


class LimitsStage:
    """The environment in which subjects run."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._upstream = free_port()
        self.redis = stack.enter_context(redis_server(folder))
        upstream = [
            sys.executable,
            "-m",
            "bench.limits",
            "--upstream",
            str(self._upstream),
            str(folder / "engine.sock"),
        ]
        stack.enter_context(process(upstream))
        wait_for(self._upstream)

    def roundhouse(self) -> contextlib.AbstractContextManager[tuple[int, int]]:
        """Start our gateway; gives its port and process id."""
        own = (
            f"[cache]\nenabled = false\n[limits]\noutput_tokens_per_minute = {self._limit}\n"
            f'[[pools]]\ntier = "small"\nname = "stub"\nmodel = "{MODEL}"\nengines = ["unix://{self._folder}/engine.sock"]\n'
        )
        return gateway(self._folder, shared_settings(self._folder, KEY) + own)

    def litellm(self) -> contextlib.AbstractContextManager[tuple[int, int]]:
        """Start LiteLLM's proxy; gives its port and process id."""
        (self._folder / "bench_auth.py").write_text(
            "from litellm.proxy._types import UserAPIKeyAuth, hash_token\n\n"
            "async def auth(request, api_key):\n"
            f"    return UserAPIKeyAuth(api_key=hash_token(api_key), tpm_limit={self._limit})\n"
        )
        return litellm(self._folder, self._upstream, KEY, "general_settings: {custom_auth: bench_auth.auth}\n")


async def load(port: int, outcome: LimitsOutcome, clients: int, seconds: float) -> float:
    """Ask until the time is over; returns the seconds until the last answer."""
    body: dict[str, object] = {"model": "auto", "messages": [{"role": "user", "content": "How far can we go?"}]}
    if outcome.named:
        body["max_tokens"] = TOKENS
    limits = httpx2.Limits(max_connections=clients)
    headers = {"authorization": f"Bearer {KEY}"}
    began = time.monotonic()
    async with httpx2.AsyncClient(timeout=60, limits=limits, headers=headers) as client:

        async def ask() -> None:
            while time.monotonic() - began < seconds:
                answer = await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body)
                if answer.status_code == 200:
                    outcome.delivered += answer.json()["usage"]["completion_tokens"]
                    continue
                outcome.refused += answer.status_code == 429
                outcome.failed += answer.status_code != 429
                await asyncio.sleep(REST)

        await asyncio.gather(*(ask() for _ in range(clients)))
    return time.monotonic() - began


def run(
    stage: LimitsStage, subjects: Sequence[str], limit: int, clients: int, seconds: float
) -> Iterator[LimitsOutcome]:
    """Run every subject twice, each time as a new process."""
    for subject in subjects:
        if subject == "litellm" and not LITELLM.exists():
            console.print("[yellow]litellm is not installed: bench/README.md says how")
            continue
        for named in (True, False):
            with redis.Redis(unix_socket_path=str(stage.redis)) as client:
                client.flushall()
            with getattr(stage, subject)() as (port, _):
                outcome = LimitsOutcome(subject, named)
                took = asyncio.run(load(port, outcome, clients, seconds))
            outcome.allowed = limit + (int(limit * took / 60) if subject == "roundhouse" else 0)
            yield outcome


def redis_time(path: Path, subjects: int, turns: int) -> float:
    """Return the microseconds of Redis per call, half of them reservations, half settlements."""
    quota = Quota(
        requests_per_minute=10**8,
        input_tokens_per_minute=10**8,
        output_tokens_per_minute=10**8,
        concurrent_turns=10**6,
        spend_per_day=10**12,
        spend_per_month=10**12,
    )
    names = ["tenant", "key:ci", "user:ann", "model:llama-7b", "adapter:law"][:subjects]
    limited = [LimitSubject(name, quota) for name in names]
    wanted = Amounts(requests=1, turns=1, input_tokens=400, output_tokens=1000, spend=900)
    used = Amounts(input_tokens=400, output_tokens=300, spend=300)
    with redis.Redis(unix_socket_path=str(path)) as client:
        script = client.register_script(SCRIPT)
        script(keys=keys("timed"), args=arguments("read", 60_000, "", Amounts(), limited))
        client.config_resetstat()
        for turn in range(turns):
            script(keys=keys("timed"), args=arguments("reserve", 60_000, f"resp_{turn}", wanted, limited))
            script(keys=keys("timed"), args=arguments("settle", 60_000, f"resp_{turn}", used, limited))
        return float(client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])


def markdown(outcomes: Sequence[LimitsOutcome], clients: int, seconds: float) -> list[str]:
    """Return the table in Markdown."""
    return [
        f"# Limits: {clients} clients at once for {seconds:g} s",
        "",
        *table(
            "subject | output limit named | tokens allowed | delivered | overshoot | refused | failed",
            (
                f"{f'**{each.subject}**' if each.subject == 'roundhouse' else each.subject} | "
                f"{'yes' if each.named else 'no'} | {each.allowed:,} | {each.delivered:,} | {each.overshoot:,} "
                f"({each.overshoot / each.allowed:.0%}) | {each.refused:,} | {each.failed:,}"
                for each in outcomes
            ),
            words=2,
        ),
        "",
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--subject", choices=SUBJECTS, action="append", help="repeatable; all by default")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--limit", type=int, default=1600, help="tokens per minute that are allowed")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--turns", type=int, default=5000, help="turns that time Redis")
    parser.add_argument("--upstream", nargs=2, metavar=("PORT", "SOCKET"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.upstream:
        asyncio.run(serve_upstream(int(chosen.upstream[0]), chosen.upstream[1]))
        return
    with contextlib.ExitStack() as stack:
        stage = LimitsStage(Path(stack.enter_context(tempfile.TemporaryDirectory())), stack, chosen.limit)
        outcomes = list(run(stage, chosen.subject or SUBJECTS, chosen.limit, chosen.clients, chosen.seconds))
        times = {subjects: redis_time(stage.redis, subjects, chosen.turns) for subjects in (1, 5)}
    lines = markdown(outcomes, chosen.clients, chosen.seconds)
    lines += table(
        "subjects | Redis' time per call (µs; reservations and settlements)",
        (f"{subjects} | {microseconds:.0f}" for subjects, microseconds in times.items()),
        words=0,
    )
    record = {"outcomes": outcomes, "redis_microseconds": times}
    publish(chosen.output / "limits", "\n".join([*lines, "", conditions(), ""]), record)


if __name__ == "__main__":
    main()
